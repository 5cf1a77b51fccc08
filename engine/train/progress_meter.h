// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "cuda/device.h"
#include "engine/cli/console.h"
#include "engine/plan/bound.h"
#include "offload/offload_engine.h"

namespace spillway::engine {

/// What the meter is told after a step.
struct StepReport {
    std::uint64_t iteration = 0;
    std::uint64_t steps = 0;  ///< in all; 0: unknown
    double loss = 0;
    double step_s = 0;
    std::uint64_t tokens = 0;  ///< of the step
    double left_s = -1;        ///< to the end; negative: unknown
    offload::OffloadStatistics offload{};
    cuda::DeviceStatistics device{};
};

/// Tells people how a run goes: a line redrawn in place on a terminal, else one every ten seconds.
/// Speed and rates are of the steps since the line before. For one thread.
class ProgressMeter {
  public:
    ProgressMeter(Console& console, std::optional<StepBound> bound);
    void report(const StepReport& step);

  private:
    using Clock = std::chrono::steady_clock;
    [[nodiscard]] std::string line(const StepReport& step) const;

    Console& console_;
    std::optional<StepBound> bound_;
    Clock::time_point shown_at_{};
    StepReport shown_{};  ///< at the line before
    double steps_s_ = 0;  ///< since then
    std::uint64_t steps_ = 0;
    std::uint64_t tokens_ = 0;
};

/// "1h02m", "3m20s", "12s".
[[nodiscard]] std::string human_time(double seconds);

}  // namespace spillway::engine
