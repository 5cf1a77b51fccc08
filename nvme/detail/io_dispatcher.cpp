// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/detail/io_dispatcher.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "nvme/detail/error_name.h"

namespace spillway::nvme::detail {

namespace {

// About a second of attempts that move nothing; then an error beats an endless loop.
constexpr unsigned most_stalls = 1000;
constexpr unsigned stalls_before_pausing = 16;
constexpr unsigned most_refusals = 5000;

void pause() {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

const char* name_of(IoOperation operation) {
    switch (operation) {
        case IoOperation::read:
            return "read";
        case IoOperation::write:
            return "write";
        case IoOperation::flush:
            return "flush";
    }
    return "request";
}

/// The longest piece of a request on `file`: cuts must suit the file, and the memory behind them.
std::size_t piece_bytes(const DirectFile& file, std::size_t max_operation_bytes) {
    const std::size_t alignment = file.request_alignment_bytes();
    return std::max(max_operation_bytes / alignment * alignment, alignment);
}

/// Where the rest of a short transfer may begin.
std::size_t resume_unit_bytes(const DirectFile& file) {
    return std::max(file.alignment().offset_bytes, file.alignment().memory_bytes);
}

std::string describe(const RequestState& state, std::uint64_t offset_bytes,
                     std::size_t length_bytes) {
    const IoRequest& request = state.request;
    if (request.operation == IoOperation::flush)
        return fmt::format("flush of {} failed", request.file->path().string());
    return fmt::format("{} of {} bytes at offset {} of {} failed", name_of(request.operation),
                       length_bytes, offset_bytes, request.file->path().string());
}

std::string_view advice_for(int error) {
    switch (error) {
        case ENOSPC:
        case EDQUOT:
            return "the file system is full: free space or use another folder";
        case EBADF:
            return "the file is not open for this";
        default:
            return {};
    }
}

}  // namespace

IoDispatcher::IoDispatcher(std::unique_ptr<IoBackend> backend, IoQueue::Options options)
    : max_operation_bytes_(options.max_operation_bytes),
      backend_(std::move(backend)),
      backend_name_(backend_->name()),
      moves_device_memory_(backend_->moves(MemoryKind::device)),
      notes_(backend_->use_fixed(options.fixed)),
      ended_(options.ended),
      lanes_(options.read_depth, options.write_depth) {
    const std::size_t depth = std::min(options.depth, backend_->depth());
    operations_.resize(depth);
    completions_.resize(depth);
    batch_.reserve(depth);
    for (std::size_t slot = depth; slot-- > 0;)
        free_slots_.push_back(static_cast<std::uint32_t>(slot));
    if (options.deadline_s > 0)
        watchdog_ =
            std::make_unique<IoWatchdog>(open_, options.deadline_s, std::move(options.on_overdue));
    thread_ = std::thread([this] { run(); });
}

IoDispatcher::~IoDispatcher() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
        if (backend_)
            backend_->wake();
    }
    thread_.join();
}

void IoDispatcher::submit(std::shared_ptr<RequestState> request) {
    {
        const std::lock_guard lock(mutex_);
        if (!breakdown_) {
            // First what can fail for want of memory: then nobody else knows of the request.
            inbox_.push_back(request);
            meter_.request_accepted();
            open_.add(*request);
            if (std::exchange(wants_wake_, false))
                backend_->wake();
            return;
        }
    }
    tell_breakdown(*request);
    request->finish();
}

void IoDispatcher::run() {
    try {
        while (collect() == Next::work) {
            cut_pending();
            push_ready();
            await_completions();
        }
    } catch (const std::system_error& error) {
        break_down(error);
    } catch (const std::exception& error) {
        break_down(std::system_error(EIO, std::generic_category(), error.what()));
    }
}

IoDispatcher::Next IoDispatcher::collect() {
    {
        const std::lock_guard lock(mutex_);
        arrived_.swap(inbox_);
        const bool idle = free_slots_.size() == operations_.size() && lanes_.empty();
        if (stopping_ && idle && arrived_.empty())
            return Next::end;
    }
    for (auto& request : arrived_)
        lanes_.push(std::move(request));
    arrived_.clear();
    return Next::work;
}

void IoDispatcher::cut_pending() {
    while (!free_slots_.empty()) {
        const std::shared_ptr<RequestState> request = lanes_.next();
        if (!request)
            break;
        cut_one(request);
    }
    lanes_.drop_cut();
}

void IoDispatcher::cut_one(const std::shared_ptr<RequestState>& request) {
    const std::uint32_t slot = free_slots_.back();
    free_slots_.pop_back();
    Operation& operation = operations_[slot];
    operation = {};
    operation.request = request;
    ++request->open_operations;
    if (request->request.operation == IoOperation::flush) {
        request->flush_cut = true;
    } else {
        const IoRequest& whole = request->request;
        operation.offset_bytes = whole.offset_bytes + request->cut_bytes;
        operation.data = whole.data + request->cut_bytes;
        operation.length_bytes = std::min(piece_bytes(*whole.file, max_operation_bytes_),
                                          whole.length_bytes - request->cut_bytes);
        request->cut_bytes += operation.length_bytes;
    }
    ready_.push_back(slot);
}

void IoDispatcher::push_ready() {
    if (ready_.empty())
        return;
    batch_.clear();
    for (const std::uint32_t slot : ready_) {
        const Operation& one = operations_[slot];
        const IoRequest& request = one.request->request;
        batch_.push_back({slot, request.operation, request.file, one.offset_bytes, one.data,
                          one.length_bytes, request.memory});
    }
    const std::size_t accepted = std::min(backend_->submit(batch_), batch_.size());
    for (std::size_t i = 0; i < accepted; ++i) {
        Operation& operation = operations_[ready_.front()];
        operation.in_backend = true;
        ++in_backend_;
        meter_.operation_began(operation.request->request.operation);
        ready_.pop_front();
    }
}

void IoDispatcher::await_completions() {
    if (in_backend_ == 0 && !ready_.empty()) {
        // The backend took nothing though it holds nothing: short of memory, so not for long.
        if (++refusals_ > most_refusals)
            throw std::system_error(
                EAGAIN, std::generic_category(),
                fmt::format("the backend took no operation in {} attempts", most_refusals));
        pause();
        return;
    }
    refusals_ = 0;
    {
        const std::lock_guard lock(mutex_);
        if (!inbox_.empty() && !free_slots_.empty())
            return;
        if (stopping_ && free_slots_.size() == operations_.size())
            return;
        wants_wake_ = !free_slots_.empty();
    }
    const std::size_t count = std::min(backend_->wait(completions_), completions_.size());
    {
        const std::lock_guard lock(mutex_);
        wants_wake_ = false;
    }
    for (std::size_t i = 0; i < count; ++i)
        complete(completions_[i]);
}

void IoDispatcher::complete(const BackendCompletion& completion) {
    if (completion.id >= operations_.size() || !operations_[completion.id].in_backend)
        throw std::system_error(
            EPROTO, std::generic_category(),
            fmt::format("operation {} was completed but is not in flight", completion.id));
    const auto slot = static_cast<std::uint32_t>(completion.id);
    Operation& operation = operations_[slot];
    operation.in_backend = false;
    --in_backend_;
    meter_.operation_ended(operation.request->request.operation);
    if (operation.request->request.operation == IoOperation::flush)
        finish_flush(slot, completion.result);
    else
        finish_transfer(slot, completion.result, completion.detail);
}

void IoDispatcher::finish_flush(std::uint32_t slot, std::int64_t result) {
    // Never repeated: the kernel reports lost pages once, and a second flush would "succeed".
    DirectFile& file = *operations_[slot].request->request.file;
    if (result < 0)
        file.note_flush_error(static_cast<int>(-result));
    // Nor does one count that was under way when another failed.
    if (const int error = file.flush_error(); error != 0) {
        fail(slot, error, "what was written since the last flush may be lost");
        return;
    }
    meter_.flush_done();
    retire(slot);
}

void IoDispatcher::finish_transfer(std::uint32_t slot, std::int64_t result,
                                   std::string_view detail) {
    Operation& operation = operations_[slot];
    RequestState& state = *operation.request;
    const IoOperation kind = state.request.operation;
    if (result == -EINTR || result == -EAGAIN)
        return retry(slot, static_cast<int>(-result));
    if (result < 0)
        return fail(slot, static_cast<int>(-result),
                    detail.empty() ? advice_for(static_cast<int>(-result)) : detail);
    if (result == 0 && kind == IoOperation::read)
        return fail(slot, ENODATA, "the file ends before the data asked for");
    if (result == 0)
        return fail(slot, EIO, "the write moved 0 bytes");
    auto moved = static_cast<std::size_t>(result);
    if (moved > operation.length_bytes)
        return fail(slot, EPROTO, fmt::format("the backend reports {} bytes moved", moved));
    const std::uint64_t moved_end = operation.offset_bytes + moved;
    if (moved < operation.length_bytes)
        moved -= moved % resume_unit_bytes(*state.request.file);
    if (moved == 0) {
        // Less than a block: the end of the file, or a hiccup that another attempt heals.
        if (kind == IoOperation::read && moved_end >= state.request.file->size_bytes())
            return fail(slot, ENODATA, "the file ends before the data asked for");
        return retry(slot, EIO);
    }
    meter_.bytes_moved(kind, moved);
    state.result.moved_bytes += moved;
    operation.stalls = 0;
    operation.offset_bytes += moved;
    operation.data += moved;
    operation.length_bytes -= moved;
    if (operation.length_bytes == 0 || !state.result.ok())
        return retire(slot);
    ready_.push_back(slot);
}

void IoDispatcher::retry(std::uint32_t slot, int error) {
    Operation& operation = operations_[slot];
    if (!operation.request->result.ok())
        return retire(slot);
    if (++operation.stalls > most_stalls)
        return fail(slot, error, fmt::format("{} attempts in a row moved nothing", most_stalls));
    if (operation.stalls > stalls_before_pausing)
        pause();
    ready_.push_back(slot);
}

void IoDispatcher::fail(std::uint32_t slot, int error, std::string_view detail) {
    const Operation& operation = operations_[slot];
    RequestState& state = *operation.request;
    if (state.result.ok()) {
        state.result.error = std::error_code(error, std::generic_category());
        state.result.context = fmt::format(
            "{}: {}{}{}{}", describe(state, operation.offset_bytes, operation.length_bytes),
            error_name(error), detail.empty() ? "" : " (", detail, detail.empty() ? "" : ")");
    }
    retire(slot);
}

void IoDispatcher::retire(std::uint32_t slot) {
    const std::shared_ptr<RequestState> request = std::move(operations_[slot].request);
    operations_[slot] = {};
    free_slots_.push_back(slot);
    lanes_.operation_ended(request->request.operation);
    --request->open_operations;
    if (request->open_operations == 0 && request->is_cut())
        finish(*request);
}

void IoDispatcher::finish(RequestState& request) {
    open_.remove(request);
    request.finish();
    if (ended_ != nullptr)
        ended_->notify();
}

void IoDispatcher::break_down(const std::system_error& error) noexcept {
    std::unique_ptr<IoBackend> broken;
    {
        const std::lock_guard lock(mutex_);
        breakdown_ = error.code();
        breakdown_text_ = error.what();
        broken = std::move(backend_);
        std::move(inbox_.begin(), inbox_.end(), std::back_inserter(arrived_));
        inbox_.clear();
    }
    // Before any ticket is told: nobody may give memory back that an operation can still move.
    broken.reset();
    std::vector<std::shared_ptr<RequestState>> lost = lanes_.take_all();
    for (auto& request : arrived_)
        if (request)
            lost.push_back(std::move(request));
    for (Operation& operation : operations_) {
        const std::shared_ptr<RequestState> request = std::exchange(operation.request, nullptr);
        if (!request)
            continue;
        if (operation.in_backend)
            meter_.operation_ended(request->request.operation);
        lost.push_back(request);
    }
    for (const auto& request : lost) {
        if (request->is_done())
            continue;
        tell_breakdown(*request);
        finish(*request);
    }
}

void IoDispatcher::tell_breakdown(RequestState& request) const {
    if (request.result.ok()) {
        request.result.error = breakdown_;
        request.result.context = fmt::format(
            "{}: the {} backend broke down and its queue takes nothing more: {}",
            describe(request, request.request.offset_bytes, request.request.length_bytes),
            backend_name_, breakdown_text_);
    }
}

}  // namespace spillway::nvme::detail
