// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>

#include "cuda/cuda_core.h"
#include "cuda/device.h"

namespace spillway::cuda {

/// What went wrong on a stream, by the number of the call. A device cannot drop work that has been
/// queued, so that failures of host functions are kept here and handed to whoever waits for what
/// came behind them. Thread-safe; no log is locked while another is looked at.
class CudaStreamLog {
  public:
    /// The number of the next call, counting from 1.
    [[nodiscard]] std::uint64_t next_call() noexcept { return calls_.fetch_add(1) + 1; }
    void fail(std::uint64_t call, std::exception_ptr failure);
    /// The calls behind this one come after call `of_other` of `other`, which may belong to another
    /// device.
    void depend(std::uint64_t call, std::shared_ptr<CudaStreamLog> other, std::uint64_t of_other);
    /// What failed before `call`, also on the streams that it came after; null if nothing. All work
    /// before it must have happened.
    [[nodiscard]] std::exception_ptr failure_before(std::uint64_t call);
    /// Whether a failure is known by now.
    [[nodiscard]] bool failed() const;

    std::atomic<std::thread::id> running;  ///< the thread that is in a host function of the stream

  private:
    struct Dependence {
        std::uint64_t call;
        std::shared_ptr<CudaStreamLog> other;
        std::uint64_t of_other;
    };
    void fail_locked(std::uint64_t call, std::exception_ptr failure);

    std::atomic<std::uint64_t> calls_ = 0;
    mutable std::mutex mutex_;            ///< guards what follows
    std::deque<Dependence> dependences_;  ///< by call, those not looked at yet
    std::uint64_t failed_call_ = 0;       ///< the lowest that failed; 0 for none
    std::exception_ptr failure_;
};

/// An event of a CUDA stream. Thread-safe.
class CudaEventState final : public Event::State {
  public:
    CudaEventState(std::shared_ptr<CudaCore> core, std::shared_ptr<CudaStreamLog> log,
                   std::uint64_t call);
    ~CudaEventState() override;

    [[nodiscard]] bool done() const override;
    void wait() override;
    /// Sleeps until it has happened, whatever failed before it. `purpose`: for the message.
    void wait_for_device(std::string_view purpose) const;

    [[nodiscard]] driver::EventHandle handle() const noexcept { return event_; }
    [[nodiscard]] const std::shared_ptr<CudaStreamLog>& log() const noexcept { return log_; }
    [[nodiscard]] std::uint64_t call() const noexcept { return call_; }
    /// Of the work before it, once it has happened.
    [[nodiscard]] std::exception_ptr failure() const { return log_->failure_before(call_); }

  private:
    const std::shared_ptr<CudaCore> core_;
    const std::shared_ptr<CudaStreamLog> log_;
    const std::uint64_t call_;
    const driver::EventHandle event_;
};

}  // namespace spillway::cuda
