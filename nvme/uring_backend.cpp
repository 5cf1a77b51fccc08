// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/uring_backend.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <limits>
#include <string>
#include <system_error>
#include <thread>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace spillway::nvme {

namespace {

constexpr std::uint64_t wake_id = std::numeric_limits<std::uint64_t>::max();
constexpr std::size_t most_depth = 4096;

[[noreturn]] void fail(int error, const std::string& what) {
    throw std::system_error(error, std::generic_category(), what);
}

/// Transient refusals: a full completion ring or no memory at this moment.
bool is_back_pressure(int result) {
    return result == -EINTR || result == -EAGAIN || result == -EBUSY;
}

/// liburing returns negated errnos and leaves errno itself alone.
void set_up(unsigned entries, io_uring& ring) {
    // Without interrupting the submitter for completions (kernel 5.19); older kernels say EINVAL.
    int result = io_uring_queue_init(entries, &ring, IORING_SETUP_COOP_TASKRUN);
    if (result == -EINVAL)
        result = io_uring_queue_init(entries, &ring, 0);
    if (result < 0)
        fail(-result, "io_uring_setup");
}

void prepare(io_uring_sqe* entry, const BackendOperation& operation) {
    const int descriptor = operation.file->descriptor();
    const auto length = static_cast<unsigned>(operation.length_bytes);
    switch (operation.operation) {
        case IoOperation::read:
            io_uring_prep_read(entry, descriptor, operation.data, length, operation.offset_bytes);
            break;
        case IoOperation::write:
            io_uring_prep_write(entry, descriptor, operation.data, length, operation.offset_bytes);
            break;
        case IoOperation::flush:
            io_uring_prep_fsync(entry, descriptor, IORING_FSYNC_DATASYNC);
            break;
    }
    io_uring_sqe_set_data64(entry, operation.id);
}

}  // namespace

UringBackend::UringBackend(std::size_t depth) : depth_(std::min(depth, most_depth)) {
    wake_event_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_event_ < 0)
        fail(errno, "eventfd");
    try {
        set_up(static_cast<unsigned>(depth_) + 1, ring_);
    } catch (...) {
        ::close(wake_event_);
        throw;
    }
    try {
        check_features();
    } catch (...) {
        io_uring_queue_exit(&ring_);
        ::close(wake_event_);
        throw;
    }
}

void UringBackend::check_features() {
    io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
    if (probe == nullptr)
        fail(ENOSYS, "the kernel's io_uring cannot say what it supports (needs Linux 5.6)");
    bool complete = true;
    for (const int operation :
         {IORING_OP_READ, IORING_OP_WRITE, IORING_OP_FSYNC, IORING_OP_POLL_ADD})
        complete = complete && io_uring_opcode_supported(probe, operation) != 0;
    io_uring_free_probe(probe);
    if (!complete)
        fail(ENOSYS, "the kernel's io_uring lacks read, write, fsync or poll (needs Linux 5.6)");
}

UringBackend::~UringBackend() {
    drain();
    io_uring_queue_exit(&ring_);
    ::close(wake_event_);
}

void UringBackend::drain() noexcept {
    // Closing a ring does not wait for the drive. What the kernel never took cannot move memory. A
    // drive that does not answer for two minutes has been given up by the kernel's own time limits.
    constexpr unsigned most_polls = 120'000;
    std::array<BackendCompletion, 64> ignored = {};
    for (unsigned i = 0; in_flight_ > io_uring_sq_ready(&ring_) && i < most_polls; ++i) {
        if (reap(ignored) != 0)
            continue;
        io_uring_get_events(&ring_);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

std::size_t UringBackend::submit(std::span<const BackendOperation> operations) {
    const std::size_t wanted = std::min(operations.size(), depth_ - in_flight_);
    std::size_t taken = 0;
    while (taken < wanted) {
        io_uring_sqe* entry = io_uring_get_sqe(&ring_);
        if (entry == nullptr)
            break;
        prepare(entry, operations[taken++]);
    }
    in_flight_ += taken;
    // What the kernel does not take now stays in the ring; wait() offers it again and reports what
    // stands in the way, so that an operation is never both refused here and still in the ring.
    io_uring_submit(&ring_);
    return taken;
}

std::size_t UringBackend::wait(std::span<BackendCompletion> completions) {
    std::size_t count = reap(completions);
    while (count == 0 && !woken_) {
        sleep_until_something_ends();
        count = reap(completions);
    }
    woken_ = false;
    return count;
}

void UringBackend::sleep_until_something_ends() {
    if (!wake_armed_) {
        io_uring_sqe* entry = io_uring_get_sqe(&ring_);
        if (entry != nullptr) {
            io_uring_prep_poll_add(entry, wake_event_, POLLIN);
            io_uring_sqe_set_data64(entry, wake_id);
            wake_armed_ = true;
        }
    }
    const int result = io_uring_submit_and_wait(&ring_, 1);
    if (result >= 0 || result == -EINTR)
        return;
    if (!is_back_pressure(result))
        fail(-result, "io_uring_enter");
    // The kernel lacks memory for the request; what completes in the meantime is reaped.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

std::size_t UringBackend::reap(std::span<BackendCompletion> completions) {
    constexpr unsigned batch = 64;
    std::array<io_uring_cqe*, batch> entries = {};
    const auto most = static_cast<unsigned>(std::min<std::size_t>(batch, completions.size()));
    const unsigned ready = io_uring_peek_batch_cqe(&ring_, entries.data(), most);
    std::size_t count = 0;
    for (unsigned i = 0; i < ready; ++i) {
        if (entries[i]->user_data == wake_id) {
            eventfd_t ignored = 0;
            ::eventfd_read(wake_event_, &ignored);
            wake_armed_ = false;
            woken_ = true;
        } else {
            completions[count++] = {entries[i]->user_data, entries[i]->res};
        }
    }
    io_uring_cq_advance(&ring_, ready);
    in_flight_ -= count;
    return count;
}

void UringBackend::wake() noexcept {
    ::eventfd_write(wake_event_, 1);
}

}  // namespace spillway::nvme
