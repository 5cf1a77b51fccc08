// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/commit_log.h"

#include <array>
#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <xxhash.h>

#include "nvme/huge_page_arena.h"
#include "offload/detail/state/commit_record.h"

namespace spillway::offload {
namespace {

using detail::CommitRecord;
using nvme::DirectFile;
using nvme::IoRequest;

constexpr std::size_t slots = 2;
constexpr std::size_t page_bytes = 4096;

nvme::OpenMode open_mode(CommitLog::Start start) {
    switch (start) {
        case CommitLog::Start::create:
            return nvme::OpenMode::create_exclusive;
        case CommitLog::Start::open_existing:
            return nvme::OpenMode::open_existing;
        case CommitLog::Start::open_read_only:
            return nvme::OpenMode::open_read_only;
    }
    throw std::logic_error("unknown way to open a commit log");
}

using FilePair = std::array<std::optional<DirectFile>, slots>;

std::filesystem::path path_of(const std::filesystem::path& folder, const char* name,
                              std::size_t slot) {
    return folder / fmt::format("{}.{}", name, slot);
}

FilePair open_pair(const std::filesystem::path& folder, const char* name, CommitLog::Start start) {
    FilePair pair;
    for (std::size_t slot = 0; slot < slots; ++slot) {
        const auto path = path_of(folder, name, slot);
        if (start == CommitLog::Start::create || std::filesystem::exists(path))
            pair[slot].emplace(path, open_mode(start), nvme::DirectMode::automatic);
    }
    return pair;
}

constexpr std::size_t whole_pages(std::size_t bytes) {
    return (bytes + page_bytes - 1) / page_bytes * page_bytes;
}

}  // namespace

class CommitLog::Impl {
  public:
    Impl(nvme::IoQueue& queue, std::filesystem::path folder, const RunId& run,
         const CommitTableShape& shape, Start start, std::uint64_t generation);

    std::optional<Recovered> recover();
    std::uint64_t commit(const CommitTable& table);
    std::uint64_t mark_dirty();
    [[nodiscard]] std::unique_ptr<Impl> next_layout(const CommitTableShape& shape) const;
    [[nodiscard]] std::size_t buffer_bytes() const noexcept { return arena_.size_bytes(); }

  private:
    /// What one slot's record says; nothing where it is blank or does not count.
    struct Slot {
        std::optional<CommitRecord> record = std::nullopt;
        bool blank = false;
        std::string problem = {};
        bool other_layout = false;  ///< whole, but of another generation
    };

    void execute(const IoRequest& request) { queue_.submit(request).wait().throw_if_error(); }
    void write_and_flush(DirectFile& file, std::span<const std::byte> bytes);
    void write_record(const CommitRecord& record);
    Slot read_slot(std::size_t slot);
    std::optional<Recovered> try_slot(std::size_t slot, std::array<Slot, slots>& found);
    std::string problem_of(const CommitRecord& record, std::size_t slot) const;
    CommitTable read_table(const CommitRecord& record);
    [[noreturn]] void refuse_all(const std::array<Slot, slots>& found) const;
    void check_usable(const char* verb) const;
    void complete_files();

    nvme::IoQueue& queue_;
    std::filesystem::path folder_;
    RunId run_;
    CommitTableShape shape_;
    Start start_;
    std::uint64_t generation_;
    std::size_t capacity_bytes_;
    nvme::HugePageArena arena_;  ///< the table's room, then the record's
    std::span<std::byte> table_room_;
    std::span<std::byte> record_room_;
    FilePair records_;
    FilePair tables_;
    std::optional<CommitRecord> newest_;
    bool knows_newest_ = false;  ///< after `create`, or once recover() has looked
    bool failed_ = false;        ///< a write went wrong: what the drive holds is unknown
};

CommitLog::Impl::Impl(nvme::IoQueue& queue, std::filesystem::path folder, const RunId& run,
                      const CommitTableShape& shape, Start start, std::uint64_t generation)
    : queue_(queue),
      folder_(std::move(folder)),
      run_(run),
      shape_(shape),
      start_(start),
      generation_(generation),
      capacity_bytes_(table_capacity_bytes(shape)),
      arena_(capacity_bytes_ + detail::record_bytes),
      table_room_(arena_.bytes().first(capacity_bytes_)),
      record_room_(arena_.bytes().subspan(capacity_bytes_, detail::record_bytes)),
      records_(open_pair(folder_, "record", start)),
      tables_(open_pair(folder_, "table", start)),
      knows_newest_(start == Start::create) {
    if (start == Start::create)
        complete_files();
}

/// Makes all four files there and as long as they must be: in a new log, and in one whose creation
/// was cut short or that lost a file of the slot that is not needed.
void CommitLog::Impl::complete_files() {
    bool changed = false;
    const auto complete = [&](FilePair& pair, const char* name, std::size_t slot,
                              std::size_t bytes) {
        auto& file = pair[slot];
        if (file && file->size_bytes() >= bytes)
            return;
        if (!file)
            file.emplace(path_of(folder_, name, slot), nvme::OpenMode::create_or_open,
                         nvme::DirectMode::automatic);
        file->preallocate(bytes);
        execute(IoRequest::make_flush(*file));
        changed = true;
    };
    for (std::size_t slot = 0; slot < slots; ++slot) {
        complete(records_, "record", slot, detail::record_bytes);
        complete(tables_, "table", slot, capacity_bytes_);
    }
    if (changed)
        nvme::sync_folder(folder_);
}

void CommitLog::Impl::write_and_flush(DirectFile& file, std::span<const std::byte> bytes) {
    execute(IoRequest::make_write(file, 0, bytes));
    execute(IoRequest::make_flush(file));
}

void CommitLog::Impl::write_record(const CommitRecord& record) {
    detail::encode_record(record, record_room_);
    write_and_flush(*records_[record.table_slot], record_room_);
}

void CommitLog::Impl::check_usable(const char* verb) const {
    if (start_ == Start::open_read_only)
        throw std::logic_error(fmt::format(
            "cannot {}: the commit log of {} is open for reading only", verb, folder_.string()));
    if (!knows_newest_)
        throw std::logic_error(fmt::format(
            "cannot {}: the commit log of {} has not been recovered yet", verb, folder_.string()));
    if (failed_)
        throw std::logic_error(
            fmt::format("cannot {}: an earlier write to the commit log of {} failed, so what the "
                        "drive holds is unknown; "
                        "resume from the last commit",
                        verb, folder_.string()));
}

std::uint64_t CommitLog::Impl::commit(const CommitTable& table) {
    check_usable("commit");
    const std::uint64_t next = newest_ ? newest_->sequence + 1 : 1;
    if (table.sequence != next)
        throw std::invalid_argument(
            fmt::format("commit of sequence {}: the next one must be {}", table.sequence, next));
    const auto shape = shape_of(table);
    if (shape != shape_)
        throw std::invalid_argument(fmt::format(
            "commit of {} tiles, {} tensors and the planes {:#x}: the run has {}, {} and {:#x}",
            shape.tiles, shape.tensors, shape.planes.bits(), shape_.tiles, shape_.tensors,
            shape_.planes.bits()));
    CommitRecord record{.run = run_,
                        .sequence = table.sequence,
                        .iteration = table.iteration,
                        .update = table.update,
                        .table_slot = newest_ ? 1 - newest_->table_slot : 0,
                        .table_bytes = serialise(table, run_, table_room_),
                        .generation = generation_};
    record.table_hash = XXH3_64bits(table_room_.data(), record.table_bytes);

    failed_ = true;  // until all of it has succeeded
    const auto pages = table_room_.first(whole_pages(record.table_bytes));
    write_and_flush(*tables_[record.table_slot], pages);
    write_record(record);
    failed_ = false;
    newest_ = record;
    return pages.size() + detail::record_bytes;
}

std::uint64_t CommitLog::Impl::mark_dirty() {
    check_usable("mark the commit as dirty");
    if (!newest_)
        throw std::logic_error(fmt::format(
            "cannot mark the commit as dirty: {} holds no commit yet", folder_.string()));
    CommitRecord record = *newest_;
    record.dirty = true;
    failed_ = true;
    write_record(record);
    failed_ = false;
    newest_ = record;
    return detail::record_bytes;
}

std::string CommitLog::Impl::problem_of(const CommitRecord& record, std::size_t slot) const {
    if (record.run != run_)
        return fmt::format("it belongs to run {}, not to run {}", record.run.text(), run_.text());
    if (record.table_slot != slot)
        return fmt::format("it names table.{}, needed is table.{}", record.table_slot, slot);
    if (record.sequence == 0)
        return "its sequence is 0, the first is 1";
    if (record.table_bytes == 0 || record.table_bytes > capacity_bytes_)
        return fmt::format("it names a table of {} bytes, needed are 1 to {}", record.table_bytes,
                           capacity_bytes_);
    return {};
}

CommitLog::Impl::Slot CommitLog::Impl::read_slot(std::size_t slot) {
    if (!records_[slot] || records_[slot]->size_bytes() == 0)
        return {.blank = true, .problem = "missing or empty"};
    const auto result =
        queue_.submit(IoRequest::make_read(*records_[slot], 0, record_room_)).wait();
    if (!result.ok())
        return {.problem = result.context};
    auto decoded = detail::decode_record(record_room_);
    if (std::holds_alternative<detail::BlankRecord>(decoded))
        return {.blank = true, .problem = "never written"};
    if (const auto* damaged = std::get_if<detail::DamagedRecord>(&decoded))
        return {.problem = damaged->problem};
    const auto& record = std::get<CommitRecord>(decoded);
    if (record.run == run_ && record.generation != generation_)
        return {.problem = fmt::format("it is of layout {}, the manifest is of layout {}",
                                       record.generation, generation_),
                .other_layout = true};
    auto problem = problem_of(record, slot);
    if (!problem.empty())
        return {.problem = std::move(problem)};
    return {.record = record};
}

CommitTable CommitLog::Impl::read_table(const CommitRecord& record) {
    if (!tables_[record.table_slot])
        throw std::runtime_error(fmt::format("table.{} is missing", record.table_slot));
    execute(IoRequest::make_read(*tables_[record.table_slot], 0,
                                 table_room_.first(whole_pages(record.table_bytes))));
    const auto bytes = table_room_.first(record.table_bytes);
    if (const auto hash = XXH3_64bits(bytes.data(), bytes.size()); hash != record.table_hash)
        throw std::runtime_error(
            fmt::format("the checksum of table.{} is {:016x}, its record needs {:016x}",
                        record.table_slot, hash, record.table_hash));
    auto table = parse_table(bytes, run_, shape_);
    if (table.sequence != record.sequence || table.iteration != record.iteration ||
        table.update != record.update)
        throw std::runtime_error(
            fmt::format("table.{} is of sequence {}, its record of sequence {}", record.table_slot,
                        table.sequence, record.sequence));
    return table;
}

void CommitLog::Impl::refuse_all(const std::array<Slot, slots>& found) const {
    throw std::runtime_error(
        fmt::format("{}: commits were written, but none can be read. record.0: {}; record.1: {}. "
                    "Restore the folder from a "
                    "copy, or start anew in another one",
                    folder_.string(), found[0].problem, found[1].problem));
}

std::optional<CommitLog::Recovered> CommitLog::Impl::try_slot(std::size_t slot,
                                                              std::array<Slot, slots>& found) {
    if (!found[slot].record)
        return std::nullopt;
    const auto& record = *found[slot].record;
    try {
        Recovered recovered;
        recovered.table = read_table(record);
        recovered.condition =
            record.dirty ? Recovered::Condition::dirty : Recovered::Condition::clean;
        if (const auto& other = found[1 - slot];
            !other.blank && !other.other_layout && !other.problem.empty())
            recovered.warning = fmt::format("{}: record.{} does not count: {}", folder_.string(),
                                            1 - slot, other.problem);
        newest_ = record;
        return recovered;
    } catch (const std::runtime_error& error) {
        found[slot].problem = error.what();
        return std::nullopt;
    }
}

std::optional<CommitLog::Recovered> CommitLog::Impl::recover() {
    std::array<Slot, slots> found{read_slot(0), read_slot(1)};
    newest_.reset();
    const auto sequence = [&](std::size_t slot) {
        return found[slot].record ? found[slot].record->sequence : 0;
    };
    const std::size_t newer = sequence(1) > sequence(0) ? 1 : 0;
    auto recovered = try_slot(newer, found);
    if (!recovered)
        recovered = try_slot(1 - newer, found);
    if (!recovered && (!found[0].blank || !found[1].blank))
        refuse_all(found);
    if (start_ == Start::open_existing)
        complete_files();
    knows_newest_ = true;
    return recovered;
}

CommitLog::Start CommitLog::start_for(const std::filesystem::path& folder) {
    for (const char* const name : {"record.0", "record.1", "table.0", "table.1"}) {
        if (std::filesystem::exists(folder / name))
            return Start::open_existing;
    }
    return Start::create;
}

std::unique_ptr<CommitLog::Impl> CommitLog::Impl::next_layout(const CommitTableShape& shape) const {
    check_usable("begin another layout");
    auto next =
        std::make_unique<Impl>(queue_, folder_, run_, shape, Start::open_existing, generation_ + 1);
    next->newest_ = newest_;
    next->knows_newest_ = true;
    next->complete_files();
    return next;
}

CommitLog::CommitLog(nvme::IoQueue& queue, const std::filesystem::path& folder, const RunId& run,
                     const CommitTableShape& shape, Start start, std::uint64_t generation)
    : impl_(std::make_unique<Impl>(queue, folder, run, shape, start, generation)) {}

CommitLog::CommitLog(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}

CommitLog::~CommitLog() = default;

std::optional<CommitLog::Recovered> CommitLog::recover() {
    return impl_->recover();
}

std::uint64_t CommitLog::commit(const CommitTable& table) {
    return impl_->commit(table);
}

std::uint64_t CommitLog::mark_dirty() {
    return impl_->mark_dirty();
}

CommitLog CommitLog::next_layout(const CommitTableShape& shape) const {
    return CommitLog(impl_->next_layout(shape));
}

std::size_t CommitLog::buffer_bytes() const noexcept {
    return impl_->buffer_bytes();
}

}  // namespace spillway::offload
