// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <algorithm>
#include <filesystem>
#include <optional>

#include <catch2/catch.hpp>
#include <xxhash.h>

#include "nvme/huge_page_arena.h"
#include "offload/commit_log.h"
#include "tests/offload/sample_commits.h"
#include "tests/support/recording_backend.h"
#include "tests/support/temporary_folder.h"

using namespace spillway::offload;
using namespace spillway::testing;
using spillway::nvme::DirectFile;
using spillway::nvme::IoOperation;
using spillway::nvme::IoRequest;
using Condition = CommitLog::Recovered::Condition;

namespace {

namespace fs = std::filesystem;

constexpr CommitTableShape shape{.tiles = 3, .tensors = 2};
constexpr std::size_t tile_file_bytes = 4096;

enum class DataFlush { before_commit, forgotten };

std::uint64_t tile_offset(std::uint64_t tile, std::uint8_t copy) {
    return (copy * shape.tiles + tile) * tile_file_bytes;
}

/// A run in miniature: the weight plane of a few small tiles, two copies each in an extents file,
/// and the commit log, on one recorded disk. Each step writes every tile but one (whose copy stays)
/// to the copy that the last commit does not name, flushes, and commits.
class SmallRun {
  public:
    explicit SmallRun(DataFlush flush = DataFlush::before_commit)
        : flush_(flush),
          extents_(folder_.path() / "extents.0", spillway::nvme::OpenMode::create_exclusive,
                   spillway::nvme::DirectMode::automatic) {
        extents_.preallocate(2 * shape.tiles * tile_file_bytes);
        log_.emplace(queue_, folder_.path(), sample_run(), shape, CommitLog::Start::create);
        table_.tensor_steps.resize(shape.tensors);
        for (auto& plane : table_.planes) {
            plane.copies.resize(shape.tiles);
            plane.checksums.resize(shape.tiles);
        }
        fs::copy(folder_.path(), pristine_.path(), fs::copy_options::recursive);
    }

    void step() {
        ++table_.sequence;
        ++table_.iteration;
        auto& plane = table_.planes[index_of(Plane::weight)];
        for (std::uint64_t tile = 0; tile < shape.tiles; ++tile) {
            if (table_.sequence > 1 && tile == table_.sequence % shape.tiles)
                continue;
            plane.copies[tile] ^= 1;
            const auto data = room_.bytes().first(tile_file_bytes);
            std::ranges::fill(data, static_cast<std::byte>(16 * table_.sequence + tile));
            plane.checksums[tile] = XXH3_64bits(data.data(), data.size());
            execute(IoRequest::make_write(extents_, tile_offset(tile, plane.copies[tile]), data));
        }
        if (flush_ == DataFlush::before_commit)
            execute(IoRequest::make_flush(extents_));
        log_->commit(table_);
        operations_at_commit_.push_back(disk_->operations());
    }

    [[nodiscard]] RecordedDisk& disk() { return *disk_; }
    [[nodiscard]] CommitLog& log() { return *log_; }
    [[nodiscard]] const CommitTable& table() const { return table_; }
    /// Commits that had returned before the crash point.
    [[nodiscard]] std::uint64_t commits_before(std::size_t crash_point) const {
        return static_cast<std::uint64_t>(std::ranges::count_if(
            operations_at_commit_, [&](std::size_t end) { return end <= crash_point; }));
    }

    struct AfterCrash {
        std::uint64_t sequence = 0;  ///< 0: no commit
        Condition condition = Condition::clean;
        bool data_whole = true;  ///< every tile's copy has the checksum that the table names
        std::string error;
    };
    /// What a restart finds after a power cut at `crash_point`.
    AfterCrash crash(std::size_t crash_point, const FateChooser& fate) {
        const auto& copy = crashed_.path();
        for (const auto& entry : fs::directory_iterator(pristine_.path()))
            fs::copy_file(entry.path(), copy / entry.path().filename(),
                          fs::copy_options::overwrite_existing);
        disk_->materialise(crash_point, fate, folder_.path(), copy);
        AfterCrash found;
        found.error = error_of([&] {
            CommitLog log(*restart_queue_, copy, sample_run(), shape,
                          CommitLog::Start::open_existing);
            const auto recovered = log.recover();
            if (!recovered)
                return;
            found.sequence = recovered->table.sequence;
            found.condition = recovered->condition;
            found.data_whole = is_whole(recovered->table, file_text(copy / "extents.0"));
        });
        return found;
    }

  private:
    static bool is_whole(const CommitTable& table, const std::string& extents) {
        const auto& plane = table.planes[index_of(Plane::weight)];
        for (std::uint64_t tile = 0; tile < shape.tiles; ++tile) {
            const auto* data = extents.data() + tile_offset(tile, plane.copies[tile]);
            if (XXH3_64bits(data, tile_file_bytes) != plane.checksums[tile])
                return false;
        }
        return true;
    }
    void execute(const IoRequest& request) { queue_.submit(request).wait().throw_if_error(); }

    TemporaryFolder folder_;
    TemporaryFolder pristine_;
    TemporaryFolder crashed_;
    DataFlush flush_;
    std::shared_ptr<RecordedDisk> disk_ = std::make_shared<RecordedDisk>();
    spillway::nvme::HugePageArena room_{tile_file_bytes};
    DirectFile extents_;
    spillway::nvme::IoQueue queue_{std::make_unique<RecordingBackend>(disk_, 8), {}};
    std::unique_ptr<spillway::nvme::IoQueue> restart_queue_ = real_queue();
    std::optional<CommitLog> log_;
    CommitTable table_;
    std::vector<std::size_t> operations_at_commit_;
};

std::vector<FateChooser> masks(std::uint64_t seeds) {
    std::vector<FateChooser> all{keep_unflushed(), drop_unflushed()};
    for (const auto fate : {WriteFate::keep_head, WriteFate::keep_tail, WriteFate::scatter})
        all.emplace_back([fate](const RecordedOperation&) { return fate; });
    for (std::uint64_t seed = 1; seed <= seeds; ++seed)
        all.push_back(seeded_fates(seed));
    return all;
}

}  // namespace

TEST_CASE("a power cut at any operation leaves the old or the new commit with its data",
          "[commit_log][crash]") {
    SmallRun run;
    for (int step = 0; step < 4; ++step)
        run.step();
    std::size_t fell_back = 0;
    const auto fates = masks(6);
    for (std::size_t point = 0; point <= run.disk().operations(); ++point) {
        const auto committed = run.commits_before(point);
        for (std::size_t mask = 0; mask < fates.size(); ++mask) {
            const auto found = run.crash(point, fates[mask]);
            CAPTURE(point, mask, committed, found.sequence, found.error);
            CHECK(found.error.empty());
            CHECK(found.sequence >= committed);
            CHECK(found.sequence <= committed + 1);
            CHECK(found.data_whole);
            fell_back += found.sequence == committed ? 1U : 0U;
        }
    }
    CHECK(fell_back > 0);
    CHECK(run.crash(run.disk().operations(), drop_unflushed()).sequence == 4);
}

TEST_CASE("the same check finds data that was not flushed before the commit",
          "[commit_log][crash]") {
    SmallRun run(DataFlush::forgotten);
    for (int step = 0; step < 3; ++step)
        run.step();
    CHECK_FALSE(run.crash(run.disk().operations(), drop_unflushed()).data_whole);
}

TEST_CASE("a commit writes and flushes its table before its record", "[commit_log][crash]") {
    SmallRun run;
    run.step();
    const auto start = run.disk().operations();
    run.step();
    std::vector<std::string> order;
    const auto log = run.disk().log();
    for (std::size_t i = start; i < log.size(); ++i) {
        if (log[i].operation == IoOperation::read)
            continue;
        order.push_back((log[i].operation == IoOperation::write ? "write " : "flush ") +
                        log[i].path.filename().string());
        if (i > start)
            CHECK(log[i - 1].acknowledged_at < log[i].submitted_at);
    }
    CHECK(order == std::vector<std::string>{"write extents.0", "write extents.0", "flush extents.0",
                                            "write table.1", "flush table.1", "write record.1",
                                            "flush record.1"});
    const auto& record = log[log.size() - 2];
    CHECK(record.length_bytes == 4096);
    CHECK(record.offset_bytes == 0);
    CHECK(std::all_of(record.written.begin() + 512, record.written.end(),
                      [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST_CASE("an I/O error at any operation of a commit makes it throw and keeps the old commit",
          "[commit_log][crash]") {
    for (std::size_t failing = 0;; ++failing) {
        SmallRun run;
        run.step();
        run.step();
        const auto first = run.disk().operations();
        run.disk().set_faults([&](const RecordedOperation& operation) {
            // Only this one fails: a flush that is tried again would seem to succeed.
            return operation.index == first + failing ? EIO : 0;
        });
        const auto error = error_of([&] { run.step(); });
        if (error.empty()) {
            CHECK(failing == 7);  // two tiles, their flush, table, flush, record, flush
            break;
        }
        CAPTURE(failing, error);
        const auto log = run.disk().log();
        CHECK(log.size() == first + failing + 1);  // nothing was tried after the failure
        CHECK_THAT(error, Catch::Contains(log.back().path.filename().string()));
        if (failing >= 3) {  // inside the log, which then refuses to go on
            CHECK_THROWS_AS(run.log().commit(run.table()), std::logic_error);
            CHECK_THROWS_AS(run.log().mark_dirty(), std::logic_error);
        }
        for (const auto& fate : masks(4)) {
            const auto found = run.crash(log.size(), fate);
            CHECK(found.error.empty());
            CHECK(found.sequence >= 2);
            CHECK(found.sequence <= 3);
            CHECK(found.data_whole);
        }
        CHECK(run.crash(log.size(), drop_unflushed()).sequence == 2);
    }
}

TEST_CASE("a drive that fails while a log is created or recovered is reported",
          "[commit_log][crash]") {
    TemporaryFolder folder;
    const auto disk = std::make_shared<RecordedDisk>();
    spillway::nvme::IoQueue queue(std::make_unique<RecordingBackend>(disk, 8), {});
    disk->fail_from(0);
    CHECK_THROWS_AS(CommitLog(queue, folder.path(), sample_run(), shape, CommitLog::Start::create),
                    std::system_error);
    CommitLog log(queue, folder.path(), sample_run(), shape, CommitLog::Start::open_read_only);
    const auto error = error_of([&] { static_cast<void>(log.recover()); });
    CHECK_THAT(error, Catch::Contains(folder.path().string()));
}

TEST_CASE("a power cut while a commit is marked dirty leaves it clean or dirty, never lost",
          "[commit_log][crash]") {
    SmallRun run;
    run.step();
    run.step();
    const auto start = run.disk().operations();
    run.log().mark_dirty();
    const auto end = run.disk().operations();
    CHECK(end == start + 2);
    for (std::size_t point = start; point <= end; ++point)
        for (const auto& fate : masks(8)) {
            const auto found = run.crash(point, fate);
            CHECK(found.error.empty());
            CHECK(found.sequence == 2);
            if (point == start || point == end)
                CHECK((found.condition == Condition::dirty) == (point == end));
        }
}

TEST_CASE("a dirty commit stays known as dirty through a power cut in the next commit",
          "[commit_log][crash]") {
    SmallRun run;
    run.step();
    run.log().mark_dirty();
    const auto start = run.disk().operations();
    run.step();
    for (std::size_t point = start; point <= run.disk().operations(); ++point)
        for (const auto& fate : masks(4)) {
            const auto found = run.crash(point, fate);
            CHECK(found.error.empty());
            CHECK((found.condition == Condition::dirty) == (found.sequence == 1));
        }
}
