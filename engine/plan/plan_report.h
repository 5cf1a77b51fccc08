// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/plan_advice.h"

namespace spillway::engine {

/// What writing costs a drive that may be written so often.
struct DriveEndurance {
    double written_bytes_per_day = 0;      ///< steps, and commits at their interval
    std::optional<double> endurance_days;  ///< until `--tbw` is used up
};

/// For a run with a time budget: what the machine could train best in that time, by Hoffmann et al.
/// 2022 (arXiv:2203.15556): 20 tokens a parameter, 6 operations a parameter and token.
struct ComputeOptimum {
    double budget_s = 0;
    std::uint64_t tokens = 0;  ///< the planned run sees in that time
    double optimal_parameters = 0;
    double optimal_tokens = 0;
};

/// Everything `spillway plan` has to tell.
struct PlanReport {
    PlannedRun run;
    AvailableMemory available;
    std::size_t overhead_bytes = 0;  ///< resident before a budget was touched
    std::string drive_folder{};
    std::uint64_t drive_available_bytes = 0;
    std::string device{};
    // Empty without a measurement (`--probe off`).
    std::optional<StepCosts> costs{};
    std::optional<StepPrediction> prediction{};
    std::vector<PlanAdvice> advice{};
    std::optional<DriveEndurance> endurance{};
    std::optional<ComputeOptimum> optimum{};
};

/// `tbw_bytes`: 0, not known.
[[nodiscard]] DriveEndurance drive_endurance(const PlannedRun& run,
                                             const StepPrediction& prediction, double tbw_bytes);
/// Of settings with a time budget and a pass that was measured.
[[nodiscard]] ComputeOptimum compute_optimum(const PlannedRun& run, const StepCosts& costs,
                                             const StepPrediction& prediction);

[[nodiscard]] std::string plan_report_json(const PlanReport& report);
[[nodiscard]] std::vector<std::string> plan_report_lines(const PlanReport& report);

}  // namespace spillway::engine
