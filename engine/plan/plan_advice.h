// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <string>
#include <vector>

#include "engine/measure/machine_memory.h"
#include "engine/plan/prediction.h"

namespace spillway::engine {

/// A change of a run and what it would give.
struct PlanAdvice {
    std::string change;  ///< as options: "--batch 32"
    std::string meaning;
    double predicted_s = 0;  ///< of a step
    double tokens_per_s = 0;
    double gain = 0;  ///< tokens per second, over those of the run as it is: 1.3 is 30 % more
};

/// The changes that would help most, best first, at most two, each worth 3 % or more: every
/// candidate is planned and predicted as the run itself. `prediction` is the run's own.
[[nodiscard]] std::vector<PlanAdvice> advise(const PlannedRun& run, const MachineSpeed& speed,
                                             const StepPrediction& prediction,
                                             const AvailableMemory& available);

}  // namespace spillway::engine
