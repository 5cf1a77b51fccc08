// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/detail/libaio_backend.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace spillway::nvme::detail {

namespace {

constexpr std::size_t most_depth = 4096;

[[noreturn]] void fail(int error, const std::string& what) {
    throw std::system_error(error, std::generic_category(), what);
}

std::string setting(const char* path) {
    std::ifstream file(path);
    std::string text;
    return std::getline(file, text) ? text : "unknown";
}

[[noreturn]] void fail_setup(int error) {
    if (error != EAGAIN)
        fail(error, "io_setup");
    fail(error, fmt::format("io_setup: the system's limit of asynchronous requests is used up, "
                            "fs.aio-max-nr is {} and fs.aio-nr {}: raise it with `sysctl "
                            "fs.aio-max-nr=1048576` or end what holds them",
                            setting("/proc/sys/fs/aio-max-nr"), setting("/proc/sys/fs/aio-nr")));
}

std::uint16_t code_of(IoOperation operation) {
    switch (operation) {
        case IoOperation::read:
            return IOCB_CMD_PREAD;
        case IoOperation::write:
            return IOCB_CMD_PWRITE;
        case IoOperation::flush:
            break;
    }
    return IOCB_CMD_FDSYNC;
}

iocb prepare(const BackendOperation& operation, int event) {
    iocb block = {};
    block.aio_data = operation.id;
    block.aio_lio_opcode = code_of(operation.operation);
    block.aio_fildes = static_cast<std::uint32_t>(operation.file->descriptor());
    // A flush takes no range: the kernel refuses one that has any.
    if (operation.operation != IoOperation::flush) {
        block.aio_buf = reinterpret_cast<std::uintptr_t>(operation.data);
        block.aio_nbytes = operation.length_bytes;
        block.aio_offset = static_cast<std::int64_t>(operation.offset_bytes);
    }
    block.aio_flags = IOCB_FLAG_RESFD;
    block.aio_resfd = static_cast<std::uint32_t>(event);
    return block;
}

}  // namespace

LibaioBackend::LibaioBackend(std::size_t depth, LibaioCalls calls)
    : calls_(std::move(calls)), depth_(std::min(depth, most_depth)) {
    event_ = ::eventfd(0, EFD_CLOEXEC);
    if (event_ < 0)
        fail(errno, "eventfd");
    try {
        set_up();
        blocks_.resize(depth_);
        pointers_.resize(depth_);
        events_.resize(depth_);
    } catch (...) {
        if (context_ != 0)
            calls_.destroy(context_);
        ::close(event_);
        throw;
    }
}

void LibaioBackend::set_up() {
    // Every context on the machine draws on one number of requests; a smaller one may still fit.
    int result = calls_.setup(static_cast<int>(depth_), &context_);
    while (result == -EAGAIN && depth_ > 1) {
        depth_ /= 2;
        result = calls_.setup(static_cast<int>(depth_), &context_);
    }
    if (result < 0) {
        context_ = 0;
        fail_setup(-result);
    }
}

LibaioBackend::~LibaioBackend() {
    // The kernel waits in here for what is in flight.
    calls_.destroy(context_);
    ::close(event_);
}

std::size_t LibaioBackend::submit(std::span<const BackendOperation> operations) {
    operations = operations.first(std::min(operations.size(), depth_ - in_flight_));
    std::size_t taken = 0;
    while (taken < operations.size()) {
        const std::size_t count = offer(operations.subspan(taken));
        if (count == 0)
            break;
        taken += count;
    }
    in_flight_ += taken;
    return taken;
}

/// One system call for all; the kernel stops at the first that it refuses. Returns how many have
/// been dealt with, 0 for back-pressure.
std::size_t LibaioBackend::offer(std::span<const BackendOperation> operations) {
    for (std::size_t i = 0; i < operations.size(); ++i) {
        blocks_[i] = prepare(operations[i], event_);
        pointers_[i] = &blocks_[i];
    }
    const int result =
        calls_.submit(context_, static_cast<long>(operations.size()), pointers_.data());
    if (result >= 0)
        return static_cast<std::size_t>(result);
    if (result == -EAGAIN || result == -EINTR)
        return 0;
    // An error of the first one alone (a file not open for this, bad memory): it ends with it.
    refused_.push_back({operations.front().id, result});
    return 1;
}

std::size_t LibaioBackend::wait(std::span<BackendCompletion> completions) {
    std::size_t count = reap(completions);
    while (count == 0 && !woken_.exchange(false)) {
        sleep_until_something_ends();
        count = reap(completions);
    }
    return count;
}

void LibaioBackend::sleep_until_something_ends() {
    // The counter may be ahead of what was already reaped: that costs a look, never a lost event.
    eventfd_t ignored = 0;
    if (::eventfd_read(event_, &ignored) != 0 && errno != EINTR)
        fail(errno, "eventfd_read");
}

std::size_t LibaioBackend::reap(std::span<BackendCompletion> completions) {
    std::size_t count = 0;
    while (count < completions.size() && !refused_.empty()) {
        completions[count++] = refused_.front();
        refused_.pop_front();
    }
    const std::size_t most = std::min(completions.size() - count, events_.size());
    if (most > 0) {
        timespec at_once = {};
        const int ready =
            calls_.get_events(context_, 0, static_cast<long>(most), events_.data(), &at_once);
        if (ready < 0 && ready != -EINTR)
            fail(-ready, "io_getevents");
        for (int i = 0; i < ready; ++i) {
            const io_event& one = events_[static_cast<std::size_t>(i)];
            completions[count++] = {one.data, one.res};
        }
    }
    in_flight_ -= count;
    return count;
}

void LibaioBackend::wake() noexcept {
    woken_.store(true);
    ::eventfd_write(event_, 1);
}

}  // namespace spillway::nvme::detail
