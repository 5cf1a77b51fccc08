// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <chrono>

namespace spillway::engine {

/// Seconds of a run over all its sessions, by the steady clock: starts at what the earlier ones
/// took.
class RunTime {
  public:
    using Clock = std::chrono::steady_clock;

    explicit RunTime(double earlier_s) noexcept : earlier_s_(earlier_s), begin_(Clock::now()) {}

    [[nodiscard]] double elapsed_s() const noexcept {
        return earlier_s_ + std::chrono::duration<double>(Clock::now() - begin_).count();
    }

  private:
    double earlier_s_;
    Clock::time_point begin_;
};

/// A run's time as a length: how far it is, and whether one more step fits, so that the last step
/// ends where the budget does. Times are seconds of the run (RunTime::elapsed_s()), from the
/// caller, who sees one clock only. Not thread-safe.
class TimeBudget {
  public:
    /// `elapsed_s`: at the start of this session. Throws std::invalid_argument unless `budget_s` is
    /// finite and above 0 and `elapsed_s` finite and not negative.
    TimeBudget(double budget_s, double elapsed_s);

    /// elapsed / budget, in [0, 1], and never less than what it returned before.
    [[nodiscard]] double progress(double elapsed_s) noexcept;

    /// A step, with everything between it and the step before, has ended.
    void step_ended(double elapsed_s) noexcept;
    /// Moving average of the steps of this session, each new one weighing a fifth; 0 before the
    /// first.
    [[nodiscard]] double step_s() const noexcept { return step_s_; }

    /// Whether a step that takes step_s() ends within the budget; before the first step of the
    /// session, whether there is time left at all.
    [[nodiscard]] bool step_fits(double elapsed_s) const noexcept;

    [[nodiscard]] double budget_s() const noexcept { return budget_s_; }

  private:
    double budget_s_;
    double progress_ = 0;
    double last_end_s_;
    double step_s_ = 0;
};

}  // namespace spillway::engine
