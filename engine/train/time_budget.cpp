// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/train/time_budget.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include <fmt/format.h>

namespace spillway::engine {

TimeBudget::TimeBudget(double budget_s, double elapsed_s)
    : budget_s_(budget_s), last_end_s_(elapsed_s) {
    if (!std::isfinite(budget_s) || budget_s <= 0)
        throw std::invalid_argument(
            fmt::format("time budget of {} s: must be finite and above 0", budget_s));
    if (!std::isfinite(elapsed_s) || elapsed_s < 0)
        throw std::invalid_argument(
            fmt::format("elapsed time of {} s: must be finite and not negative", elapsed_s));
}

double TimeBudget::progress(double elapsed_s) noexcept {
    progress_ = std::max(progress_, std::clamp(elapsed_s / budget_s_, 0.0, 1.0));
    return progress_;
}

void TimeBudget::step_ended(double elapsed_s) noexcept {
    constexpr double weight = 0.2;
    const double step_s = std::max(0.0, elapsed_s - last_end_s_);
    step_s_ = step_s_ == 0 ? step_s : step_s_ + weight * (step_s - step_s_);
    last_end_s_ = std::max(last_end_s_, elapsed_s);
}

bool TimeBudget::step_fits(double elapsed_s) const noexcept {
    return elapsed_s < budget_s_ && elapsed_s + step_s_ <= budget_s_;
}

}  // namespace spillway::engine
