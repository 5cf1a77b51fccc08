// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/uring_backend.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <liburing.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "nvme/detail/error_name.h"
#include "nvme/detail/uring_ring.h"

namespace spillway::nvme {

namespace {

constexpr std::size_t most_depth = 4096;

[[noreturn]] void fail(int error, const std::string& what) {
    throw std::system_error(error, std::generic_category(), what);
}

/// Transient refusals: a full completion ring or no memory at this moment.
bool is_back_pressure(int result) {
    return result == -EINTR || result == -EAGAIN || result == -EBUSY;
}

void pause() {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

std::unique_ptr<detail::UringRing> make_ring(unsigned entries, unsigned flags) {
    // Without interrupting the submitter for completions (kernel 5.19); older kernels say EINVAL.
    try {
        return std::make_unique<detail::UringRing>(entries, flags | IORING_SETUP_COOP_TASKRUN);
    } catch (const std::system_error& refused) {
        if (refused.code().value() != EINVAL)
            throw;
    }
    return std::make_unique<detail::UringRing>(entries, flags);
}

/// What a read of the file's first block through a polled ring comes to: 0, or the errno of a file
/// system or drive that cannot be polled.
int refusal_of_polling(detail::UringRing& ring, DirectFile& file) {
    alignas(4096) std::array<std::byte, 4096> block;
    const std::size_t unit = file.alignment().offset_bytes;
    if (unit > block.size() || 4096 % file.alignment().memory_bytes != 0)
        return EOPNOTSUPP;
    if (!ring.gather({0, IoOperation::read, &file, 0, block.data(), unit}))
        return EBUSY;
    std::array<BackendCompletion, 1> completion = {};
    bool woken = false;
    while (ring.in_flight() > 0) {
        if (ring.gathered() > 0) {
            const int result = io_uring_submit(&ring.raw());
            if (result < 0 && !is_back_pressure(result))
                return -result;  // the ring still holds it and is dropped with it
        }
        io_uring_get_events(&ring.raw());
        if (ring.reap(completion, woken) == 0)
            std::this_thread::yield();
    }
    const auto result = static_cast<int>(completion[0].result);
    return result >= 0 || is_back_pressure(result) ? 0 : -result;
}

}  // namespace

UringBackend::UringBackend(std::size_t depth, UringOptions options)
    : depth_(std::min(depth, most_depth)), options_(options) {
    wake_event_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_event_ < 0)
        fail(errno, "eventfd");
    try {
        make_rings();
        check_features();
    } catch (...) {
        ring_.reset();
        ::close(wake_event_);
        throw;
    }
}

void UringBackend::make_rings() {
    const auto entries = static_cast<unsigned>(depth_) + 1;
    if (options_.submission == UringOptions::Submission::kernel_thread) {
        std::string reason;
        try {
            ring_ = std::make_unique<detail::UringRing>(entries, IORING_SETUP_SQPOLL,
                                                        options_.kernel_thread_idle_ms);
            const unsigned features = ring_->raw().features & ~options_.hidden_features;
            if ((features & IORING_FEAT_SQPOLL_NONFIXED) != 0)
                return;
            reason = "it serves no files that are not registered (needs Linux 5.11)";
            ring_.reset();
        } catch (const std::system_error& refused) {
            reason = detail::error_name(refused.code().value());
        }
        options_.submission = UringOptions::Submission::system_call;
        notes_.push_back(
            fmt::format("requests are handed over by system calls, not by a thread of the kernel "
                        "(SQPOLL): {}",
                        reason));
    }
    ring_ = make_ring(entries, 0);
}

void UringBackend::check_features() {
    io_uring_probe* probe = io_uring_get_probe_ring(&ring_->raw());
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
    polled_.reset();
    ring_.reset();
    ::close(wake_event_);
}

std::vector<std::string> UringBackend::use_fixed(const FixedResources& fixed) {
    for (std::string note :
         {ring_->register_memory(fixed.memory), ring_->register_files(fixed.files)})
        if (!note.empty())
            notes_.push_back(std::move(note));
    if (options_.completion == UringOptions::Completion::polled)
        make_polled_ring(fixed);
    return std::exchange(notes_, {});
}

void UringBackend::make_polled_ring(const FixedResources& fixed) {
    std::string reason;
    try {
        std::vector<DirectFile*> direct;
        std::copy_if(fixed.files.begin(), fixed.files.end(), std::back_inserter(direct),
                     [](const DirectFile* file) { return file->is_direct(); });
        polled_ = make_ring(static_cast<unsigned>(depth_), IORING_SETUP_IOPOLL);
        reason = direct.empty() ? "no direct file was introduced" : polled_->register_files(direct);
        for (DirectFile* file : direct) {
            if (!reason.empty())
                break;
            if (const int error = refusal_of_polling(*polled_, *file); error != 0)
                reason = fmt::format("{}, the drive or file system of {} has no queues for it",
                                     detail::error_name(error), file->path().string());
        }
        if (reason.empty())
            reason = polled_->register_memory(fixed.memory);
    } catch (const std::system_error& refused) {
        reason = detail::error_name(refused.code().value());
    }
    if (reason.empty())
        return;
    polled_.reset();
    notes_.push_back(
        fmt::format("completions come by interrupt, the drive is not polled (IOPOLL): {}", reason));
}

detail::UringRing& UringBackend::ring_for(const BackendOperation& operation) noexcept {
    const bool can_be_polled = polled_ && !polling_refused_ &&
                               operation.operation != IoOperation::flush &&
                               operation.file->is_direct() && polled_->has_file(*operation.file);
    return can_be_polled ? *polled_ : *ring_;
}

std::size_t UringBackend::submit(std::span<const BackendOperation> operations) {
    // Only gathered here: the system call in wait() hands all of them over. One that the kernel
    // does not take then stays in the ring and is offered again, never both refused and kept.
    const std::size_t in_flight = ring_->in_flight() + (polled_ ? polled_->in_flight() : 0);
    const std::size_t wanted = std::min(operations.size(), depth_ - in_flight);
    std::size_t taken = 0;
    while (taken < wanted && ring_for(operations[taken]).gather(operations[taken]))
        ++taken;
    return taken;
}

std::size_t UringBackend::wait(std::span<BackendCompletion> completions) {
    const bool has_gathered =
        ring_->gathered() != 0 || (polled_ != nullptr && polled_->gathered() != 0);
    std::size_t count = has_gathered ? 0 : reap(completions);
    while (count == 0 && !woken_) {
        if (polled_ && polled_->in_flight() > 0)
            look_once();
        else
            sleep_until_something_ends();
        count = reap(completions);
    }
    woken_ = false;
    return count;
}

void UringBackend::arm_wake() {
    if (!wake_armed_)
        wake_armed_ = ring_->gather_wake(wake_event_);
}

void UringBackend::sleep_until_something_ends() {
    arm_wake();
    const int result = io_uring_submit_and_wait(&ring_->raw(), 1);
    if (result >= 0 || result == -EINTR)
        return;
    if (!is_back_pressure(result))
        fail(-result, "io_uring_enter");
    // The kernel lacks memory for the request; what completes in the meantime is reaped.
    pause();
}

/// Asks the drive once; nobody would wake a sleeper for what is polled.
void UringBackend::look_once() {
    arm_wake();
    for (detail::UringRing* ring : {ring_.get(), polled_.get()}) {
        if (ring->gathered() == 0)
            continue;
        const int result = io_uring_submit(&ring->raw());
        if (result < 0 && !is_back_pressure(result))
            fail(-result, "io_uring_enter");
    }
    io_uring_get_events(&polled_->raw());
}

std::size_t UringBackend::reap(std::span<BackendCompletion> completions) {
    bool woken = false;
    std::size_t count = ring_->reap(completions, woken);
    if (woken) {
        eventfd_t ignored = 0;
        ::eventfd_read(wake_event_, &ignored);
        wake_armed_ = false;
        woken_ = true;
    }
    if (polled_) {
        const std::size_t polled = polled_->reap(completions.subspan(count), woken);
        for (BackendCompletion& one : completions.subspan(count, polled)) {
            if (one.result != -EOPNOTSUPP)
                continue;
            // Moved nothing: tried again, it goes the other way.
            polling_refused_ = true;
            one.result = -EAGAIN;
        }
        count += polled;
    }
    return count;
}

void UringBackend::wake() noexcept {
    ::eventfd_write(wake_event_, 1);
}

}  // namespace spillway::nvme
