// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <optional>

#include "engine/settings/schedule.h"
#include "engine/settings/train_settings.h"
#include "engine/train/progress_replay.h"
#include "engine/train/time_budget.h"

namespace spillway::engine {

/// How long a run goes and which learning rate each step has: by updates (--steps), by the clock
/// (--budget), or by the progress that an earlier run logged (--replay-progress). Not thread-safe.
class RunClock {
  public:
    /// `settings` are resolved: schedule_steps is not 0 where steps count. `elapsed_s`: of earlier
    /// sessions. `replay`, if there is one, takes the clock's place.
    RunClock(const TrainSettings& settings, std::optional<ProgressReplay> replay, double elapsed_s);

    /// Whether no step follows the `iteration` steps made so far.
    [[nodiscard]] bool is_over(std::uint64_t iteration, double elapsed_s) const;

    /// What the step after `iteration` steps and `update` updates uses.
    struct Pace {
        double learning_rate = 0;
        std::optional<double> progress;  ///< of the budget; none where steps count
    };
    [[nodiscard]] Pace pace(std::uint64_t iteration, std::uint64_t update, double elapsed_s);
    void step_ended(double elapsed_s) noexcept;

    /// Seconds to the end, `step_s` being the mean of a step.
    [[nodiscard]] double left_s(std::uint64_t iteration, double elapsed_s, double step_s) const;

  private:
    std::uint64_t steps_;           ///< in all; of a replay, its length
    std::uint64_t schedule_steps_;  ///< 0: the schedule follows progress
    Schedule schedule_;
    std::optional<TimeBudget> budget_;
    std::optional<ProgressReplay> replay_;
};

}  // namespace spillway::engine
