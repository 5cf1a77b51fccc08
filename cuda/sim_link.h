// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace spillway::cuda {

/// One direction of a simulated link, shared by all streams. It keeps a clock of its own, the end
/// of the last transfer, and never sleeps: whoever transfers waits for the time it is told. So many
/// small transfers take together exactly their bytes / rate, however late each of them wakes up.
/// Thread-safe.
class SimLink {
  public:
    using Clock = std::chrono::steady_clock;

    /// 0 for a link that takes no time.
    explicit SimLink(double bytes_per_s) noexcept : bytes_per_s_(bytes_per_s) {}

    [[nodiscard]] double bytes_per_s() const noexcept { return bytes_per_s_; }

    /// When a transfer that could start at `ready` ends: behind all transfers asked for before.
    [[nodiscard]] Clock::time_point transfer(std::size_t bytes, Clock::time_point ready);

  private:
    const double bytes_per_s_;
    std::mutex mutex_;
    // The link has been busy without a pause from busy_since_ on, with busy_bytes_ so far. Adding
    // up bytes, not rounded times, keeps a long run exact.
    Clock::time_point busy_since_;
    Clock::time_point free_at_;
    std::uint64_t busy_bytes_ = 0;
};

/// Returns at `until`, some microseconds late at most on an idle core: sleeps, then yields for the
/// last 20 us.
void wait_precisely(SimLink::Clock::time_point until);

}  // namespace spillway::cuda
