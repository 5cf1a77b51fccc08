// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/train/run_clock.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace spillway::engine {

RunClock::RunClock(const TrainSettings& settings, std::optional<ProgressReplay> replay,
                   double elapsed_s)
    : steps_(settings.steps),
      schedule_steps_(settings.schedule_steps),
      schedule_({.shape = parse_schedule_shape(settings.schedule),
                 .peak = settings.lr,
                 .final_part = settings.min_lr,
                 .warmup_updates = settings.warmup}),
      replay_(std::move(replay)) {
    if (replay_)
        steps_ = replay_->steps();
    else if (settings.budget_s > 0)
        budget_.emplace(settings.budget_s, elapsed_s);
}

bool RunClock::is_over(std::uint64_t iteration, double elapsed_s) const {
    return budget_ ? !budget_->step_fits(elapsed_s) : iteration >= steps_;
}

RunClock::Pace RunClock::pace(std::uint64_t iteration, std::uint64_t update, double elapsed_s) {
    if (schedule_steps_ > 0)
        return {schedule_.at_update(update, schedule_steps_), std::nullopt};
    const double progress =
        budget_ ? budget_->progress(elapsed_s) : replay_.value().progress(iteration);
    return {schedule_.at_progress(update, progress), progress};
}

void RunClock::step_ended(double elapsed_s) noexcept {
    if (budget_)
        budget_->step_ended(elapsed_s);
}

double RunClock::left_s(std::uint64_t iteration, double elapsed_s, double step_s) const {
    if (budget_)
        return std::max(0.0, budget_->budget_s() - elapsed_s);
    return static_cast<double>(steps_ - std::min(steps_, iteration)) * step_s;
}

}  // namespace spillway::engine
