// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/cpu_stream.h"

#include <chrono>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

namespace spillway::cuda {
namespace {

using Clock = std::chrono::steady_clock;

/// An event behind a failure. Without one an event needs no state: it has happened when it is
/// recorded.
class FailedEventState final : public Event::State {
  public:
    explicit FailedEventState(std::exception_ptr error) : error_(std::move(error)) {}
    bool done() const override { return true; }
    void wait() override { std::rethrow_exception(error_); }

  private:
    const std::exception_ptr error_;
};

}  // namespace

/// Holds the stream for one call. A kernel that calls its own stream would wait for itself:
/// refused.
class CpuStream::Turn {
  public:
    explicit Turn(CpuStream& stream) : stream_(stream) {
        if (stream_.owner_.load(std::memory_order_relaxed) == std::this_thread::get_id())
            throw std::logic_error(
                fmt::format("stream '{}': a kernel called the stream it runs on; call from outside",
                            stream_.name_));
        stream_.mutex_.lock();
        stream_.owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    }
    ~Turn() {
        stream_.owner_.store(std::thread::id(), std::memory_order_relaxed);
        stream_.mutex_.unlock();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

  private:
    CpuStream& stream_;
};

CpuStream::CpuStream(std::string_view name, std::shared_ptr<DeviceCounters> counters)
    : name_(name), counters_(std::move(counters)) {}

void CpuStream::copy_to_device(std::byte* device_to, const std::byte* host_from,
                               std::size_t bytes) {
    copy("copy_to_device", CopyDirection::to_device,
         {device_to, bytes, host_from, bytes, bytes, 1});
}

void CpuStream::copy_to_host(std::byte* host_to, const std::byte* device_from, std::size_t bytes) {
    copy("copy_to_host", CopyDirection::to_host, {host_to, bytes, device_from, bytes, bytes, 1});
}

void CpuStream::copy_rows_to_device(std::byte* device_to, std::size_t to_pitch,
                                    const std::byte* host_from, std::size_t from_pitch,
                                    std::size_t row_bytes, std::size_t rows) {
    copy("copy_rows_to_device", CopyDirection::to_device,
         {device_to, to_pitch, host_from, from_pitch, row_bytes, rows});
}

void CpuStream::copy(std::string_view call, CopyDirection direction, const RowCopy& copy) {
    copy.check(call);
    const Turn turn(*this);
    if (error_)
        return;
    const auto begin = Clock::now();
    copy.execute();
    counters_->count_copy(direction, copy.bytes(), Clock::now() - begin);
}

void CpuStream::launch(const char*, std::function<void()> kernel) {
    const Turn turn(*this);
    if (error_)
        return;
    const auto begin = Clock::now();
    try {
        kernel();
    } catch (...) {
        error_ = std::current_exception();
    }
    counters_->count_kernel(Clock::now() - begin);
}

Event CpuStream::record() {
    const Turn turn(*this);
    return error_ ? Event(std::make_shared<FailedEventState>(error_)) : Event();
}

void CpuStream::wait(const Event& event) {
    const Turn turn(*this);
    try {
        event.wait();
    } catch (...) {
        if (!error_)
            error_ = std::current_exception();
    }
}

void CpuStream::synchronize() {
    const Turn turn(*this);
    if (error_)
        std::rethrow_exception(error_);
}

}  // namespace spillway::cuda
