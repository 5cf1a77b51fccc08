// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/io_queue.h"

#include <algorithm>
#include <cerrno>
#include <limits>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "nvme/detail/error_name.h"
#include "nvme/detail/fork_mark.h"
#include "nvme/detail/io_dispatcher.h"
#include "nvme/detail/request_state.h"

namespace spillway::nvme {

namespace {

// The kernel moves no more in one call, and io_uring's length field has 32 bits.
constexpr std::size_t kernel_limit_bytes = 0x7ffff000;

constexpr double longest_deadline_s = 1e6;

IoResult refuse(int error, std::string context) {
    IoResult result;
    result.error = std::error_code(error, std::generic_category());
    result.context = std::move(context);
    return result;
}

std::string misaligned(const IoRequest& request, const char* what, std::uint64_t found) {
    return fmt::format(
        "I/O on {} refused: {} {:#x} ({} bytes at offset {}) is not a multiple of {}; align it or "
        "open the file buffered",
        request.file->path().string(), what, found, request.length_bytes, request.offset_bytes,
        request.file->request_alignment_bytes());
}

IoResult check_alignment(const IoRequest& request) {
    const std::size_t needed_bytes = request.file->request_alignment_bytes();
    const auto address = reinterpret_cast<std::uintptr_t>(request.data);
    if (address % needed_bytes != 0)
        return refuse(EINVAL, misaligned(request, "memory address", address));
    if (request.offset_bytes % needed_bytes != 0)
        return refuse(EINVAL, misaligned(request, "offset", request.offset_bytes));
    if (request.length_bytes % needed_bytes != 0)
        return refuse(EINVAL, misaligned(request, "length", request.length_bytes));
    return {};
}

IoResult check_flush(const DirectFile& file) {
    const int error = file.flush_error();
    if (error == 0)
        return {};
    return refuse(error, fmt::format("flush of {} refused: an earlier one failed ({}), so what was "
                                     "written before may be lost whatever this one says; open the "
                                     "file anew and write again from memory, or give up",
                                     file.path().string(), detail::error_name(error)));
}

IoResult check(const IoRequest& request) {
    if (request.file == nullptr || request.file->descriptor() < 0)
        return refuse(EINVAL, "an I/O request names no open file");
    if (request.operation == IoOperation::flush)
        return check_flush(*request.file);
    if (request.length_bytes == 0)
        return {};
    if (request.data == nullptr)
        return refuse(EINVAL, fmt::format("an I/O request of {} bytes on {} has no memory",
                                          request.length_bytes, request.file->path().string()));
    constexpr auto largest = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max());
    if (request.offset_bytes > largest || request.length_bytes > largest - request.offset_bytes)
        return refuse(EINVAL, fmt::format("{} bytes at offset {} of {} end beyond the largest "
                                          "offset, {}",
                                          request.length_bytes, request.offset_bytes,
                                          request.file->path().string(), largest));
    return check_alignment(request);
}

IoResult refuse_device_memory(const IoRequest& request, std::string_view backend) {
    return refuse(EOPNOTSUPP,
                  fmt::format("{} bytes of GPU memory for {} refused: the {} backend moves host "
                              "memory alone; use the gds backend (GPUDirect Storage), or copy "
                              "through host memory",
                              request.length_bytes, request.file->path().string(), backend));
}

IoQueue::Options checked(IoQueue::Options options) {
    if (options.depth == 0 || options.max_operation_bytes == 0)
        throw std::invalid_argument(
            fmt::format("an I/O queue needs a depth and an operation size of at least 1; it was "
                        "given {} and {} bytes",
                        options.depth, options.max_operation_bytes));
    if (!(options.deadline_s >= 0 && options.deadline_s <= longest_deadline_s))
        throw std::invalid_argument(
            fmt::format("an I/O queue's deadline is from 0 (none) to {} s; it was given {} s",
                        longest_deadline_s, options.deadline_s));
    if (options.deadline_s > 0 && !options.on_overdue)
        throw std::invalid_argument("an I/O queue with a deadline needs someone to report to");
    options.max_operation_bytes = std::min(options.max_operation_bytes, kernel_limit_bytes);
    if (options.read_depth == 0)
        options.read_depth = options.depth;
    if (options.write_depth == 0)
        options.write_depth = options.depth;
    return options;
}

}  // namespace

struct IoTicket::State : detail::RequestState {};

IoTicket::IoTicket(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}

IoTicket::IoTicket(IoTicket&&) noexcept = default;

IoTicket::~IoTicket() {
    if (state_)
        wait();
}

IoTicket& IoTicket::operator=(IoTicket&& other) noexcept {
    if (this != &other) {
        if (state_)
            wait();
        state_ = std::move(other.state_);
    }
    return *this;
}

bool IoTicket::done() const noexcept {
    return !state_ || state_->is_done();
}

IoResult IoTicket::wait() {
    if (!state_)
        return {};
    if (!state_->is_done()) {
        if (state_->owner != ::getpid())
            return refuse(EPERM,
                          "the request belongs to the process this one was forked from; "
                          "only that process can wait for it");
        state_->wait();
    }
    return state_->result;
}

class IoQueue::Impl {
  public:
    Impl(std::unique_ptr<IoBackend> backend, Options options)
        : dispatcher(std::move(backend), options) {}

    const detail::ForkMark maker;
    detail::IoDispatcher dispatcher;
};

IoQueue::IoQueue(std::unique_ptr<IoBackend> backend, Options options) {
    options = checked(options);
    if (!backend)
        throw std::invalid_argument("an I/O queue needs a backend");
    impl_ = std::make_unique<Impl>(std::move(backend), options);
}

IoQueue::~IoQueue() {
    // A forked child has neither the queue's thread nor its ring: the copy is left alone, on
    // purpose.
    if (!impl_->maker.is_here())
        static_cast<void>(impl_.release());
}

IoTicket IoQueue::submit(const IoRequest& request) {
    auto state = std::make_shared<IoTicket::State>();
    state->request = request;
    state->owner = impl_->maker.owner();
    if (!impl_->maker.is_here())
        state->result = refuse(EPERM,
                               "the I/O queue belongs to the process this one was forked "
                               "from; make a queue of your own in the child");
    else
        state->result = check(request);
    if (state->result.ok() && request.memory == MemoryKind::device &&
        request.operation != IoOperation::flush && !impl_->dispatcher.moves_device_memory())
        state->result = refuse_device_memory(request, backend_name());
    const bool is_empty = request.operation != IoOperation::flush && request.length_bytes == 0;
    if (!state->result.ok() || is_empty)
        state->finish();
    else
        impl_->dispatcher.submit(state);
    return IoTicket(std::move(state));
}

// A lock that another thread held when a child was forked stays locked there.
IoStatistics IoQueue::statistics() const {
    if (!impl_->maker.is_here())
        return {};
    return impl_->dispatcher.statistics();
}

std::string_view IoQueue::backend_name() const noexcept {
    return impl_->dispatcher.backend_name();
}

std::vector<PendingIo> IoQueue::pending() const {
    if (!impl_->maker.is_here())
        return {};
    return impl_->dispatcher.pending();
}

const std::vector<std::string>& IoQueue::notes() const noexcept {
    return impl_->dispatcher.notes();
}

std::string PendingIo::text() const {
    if (operation == IoOperation::flush)
        return fmt::format("flush of {}, pending for {:.1f} s", path.string(), age_s);
    return fmt::format("{} of {} bytes at offset {} of {}, pending for {:.1f} s",
                       operation == IoOperation::read ? "read" : "write", length_bytes,
                       offset_bytes, path.string(), age_s);
}

}  // namespace spillway::nvme
