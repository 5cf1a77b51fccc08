// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>

#include "engine/plan/bound.h"
#include "engine/plan/step_costs.h"

namespace spillway::engine {

/// What one commit costs a run that goes on meanwhile.
struct CommitPrediction {
    double seconds = 0;   ///< planes in memory checksummed and written
    double hidden_s = 0;  ///< beside the backward pass: the update that follows it has to wait
    double exposed_s = 0;
};

/// How long a step takes before it is run. Each phase lasts as long as its slowest resource: with
/// `after_norm` the update and its traffic belong to the forward pass that follows it, with
/// `as_completed` to the backward pass; weights are read for both.
struct StepPrediction {
    double forward_s = 0;   ///< the phase, with what overlaps it
    double backward_s = 0;  ///< as well
    CommitPrediction commit;
    double commit_s = 0;  ///< a step's share of the commits between steps
    double seconds = 0;   ///< of a step, with its share of the commits
    LaneTimes lanes;
    StepBound bound;  ///< what no order of the work could beat
};

[[nodiscard]] StepPrediction predict_step(const StepCosts& costs, offload::UpdateTiming timing);

/// Tokens a step needs at least for its passes to hide the drive (T* of the design); 0 without
/// traffic there, when the passes were not measured, or when layers' inputs alone take longer.
[[nodiscard]] std::uint64_t hiding_tokens(const StepCosts& costs, std::uint64_t tokens_per_step);

}  // namespace spillway::engine
