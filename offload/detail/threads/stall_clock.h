// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "cuda/device.h"
#include "offload/stall_seconds.h"
#include "offload/step_trace.h"

namespace spillway::offload::detail {

enum class StallCause : std::uint8_t { nvme_read, nvme_write, link, cpu, commit, devices };
inline constexpr std::size_t stall_causes = 6;

/// The trace begins its causes with these.
[[nodiscard]] constexpr TraceCause trace_cause(StallCause cause) noexcept {
    static_assert(static_cast<std::size_t>(TraceCause::devices) ==
                  static_cast<std::size_t>(StallCause::devices));
    return static_cast<TraceCause>(cause);
}

[[nodiscard]] inline double now_s() noexcept {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

/// Seconds by cause. Thread-safe.
class StallTotals {
  public:
    void add(StallCause cause, double seconds) noexcept {
        // A nanosecond counter, since atomic<double> has no fetch_add everywhere.
        nanoseconds_[static_cast<std::size_t>(cause)].fetch_add(
            static_cast<std::uint64_t>(seconds * 1e9));
    }
    [[nodiscard]] double seconds(StallCause cause) const noexcept {
        return static_cast<double>(nanoseconds_[static_cast<std::size_t>(cause)].load()) * 1e-9;
    }

    [[nodiscard]] StallSeconds all() const noexcept {
        return {.nvme_read = seconds(StallCause::nvme_read),
                .nvme_write = seconds(StallCause::nvme_write),
                .link = seconds(StallCause::link),
                .cpu = seconds(StallCause::cpu),
                .commit = seconds(StallCause::commit),
                .devices = seconds(StallCause::devices)};
    }

    [[nodiscard]] std::array<double, stall_causes> snapshot() const noexcept {
        std::array<double, stall_causes> all{};
        for (std::size_t cause = 0; cause < stall_causes; ++cause)
            all[cause] = seconds(static_cast<StallCause>(cause));
        return all;
    }

  private:
    std::array<std::atomic<std::uint64_t>, stall_causes> nanoseconds_{};
};

/// Adds the seconds of its own life to one cause, and to `waits` as an event.
class StallTimer {
  public:
    StallTimer(StallTotals& totals, StallCause cause, TraceRow waits = {}) noexcept
        : totals_(totals), cause_(cause), waits_(waits), began_s_(now_s()) {
        waits_.begin_wait();
    }
    ~StallTimer() {
        waits_.end_wait(trace_cause(cause_));
        totals_.add(cause_, now_s() - began_s_);
    }
    StallTimer(const StallTimer&) = delete;
    StallTimer& operator=(const StallTimer&) = delete;

  private:
    StallTotals& totals_;
    StallCause cause_;
    TraceRow waits_;
    double began_s_;
};

/// Measures on the compute stream itself how long it stood still between begin() and end(): on an
/// asynchronous device the driving thread's own waits say nothing. Used by one driving thread.
class StreamStall {
  public:
    StreamStall(cuda::Stream& compute, StallTotals& totals, TraceRow waits = {}) noexcept
        : compute_(compute), totals_(totals), waits_(waits) {}
    void begin() {
        compute_.launch("stall begin", [this] {
            begin_s_ = now_s();
            waits_.begin_wait();
        });
    }
    void end(StallCause cause) {
        compute_.launch("stall end", [this, cause] {
            waits_.end_wait(trace_cause(cause));
            totals_.add(cause, now_s() - begin_s_);
        });
    }

  private:
    cuda::Stream& compute_;
    StallTotals& totals_;
    TraceRow waits_;
    double begin_s_ = 0;  // touched by the compute stream only
};

}  // namespace spillway::offload::detail
