// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "offload/step_trace.h"

namespace spillway::offload::detail {

/// Divides the time of each lane into busy and idle by cause, at every change, so that the parts
/// are the whole whatever happens: memory does not grow with events. A lane may work on several
/// things at once. Moments are nanoseconds of one clock and must not go back. Not thread-safe.
class LaneClock {
  public:
    /// Of a lane, since start().
    struct Times {
        std::uint64_t busy_ns = 0;
        std::array<std::uint64_t, trace_causes> idle_ns{};
    };

    /// Returns its number.
    std::size_t add(const TraceLane& lane);

    /// What is under way by then counts from then on.
    void start(std::uint64_t at_ns);
    /// The last moment that counts.
    void stop(std::uint64_t at_ns);
    [[nodiscard]] bool is_running() const noexcept { return running_; }

    void work_begins(std::size_t lane, std::uint64_t at_ns);
    void work_ends(std::size_t lane, std::uint64_t at_ns);
    /// While a lane waits, its idle time is of the cause that the wait's end names; of several
    /// waits, that began first. `wait`: its number, to tell it from others.
    void wait_begins(std::size_t lane, std::size_t wait, std::uint64_t at_ns);
    void wait_ends(std::size_t lane, std::size_t wait, TraceCause cause, std::uint64_t at_ns);

    [[nodiscard]] const Times& times(std::size_t lane) const noexcept { return lanes_[lane].times; }
    [[nodiscard]] std::uint64_t wall_ns() const noexcept { return now_ns_ - start_ns_; }

  private:
    struct Wait {
        std::size_t number = 0;
        std::uint64_t idle_ns = 0;
    };
    struct Lane {
        TraceCause work = TraceCause::other;
        std::vector<TraceCause> waits_for;
        std::size_t under_way = 0;
        std::vector<Wait> waits;  ///< that have not ended, oldest first
        Times times;
    };

    void advance(std::uint64_t at_ns);
    [[nodiscard]] TraceCause cause_of(const Lane& lane) const noexcept;

    std::vector<Lane> lanes_;
    std::array<std::size_t, trace_causes> under_way_{};  ///< by the lanes' kind of work
    bool running_ = false;
    std::uint64_t start_ns_ = 0;
    std::uint64_t now_ns_ = 0;
};

}  // namespace spillway::offload::detail
