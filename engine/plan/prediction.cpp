// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/plan/prediction.h"

#include <algorithm>
#include <cmath>

namespace spillway::engine {
namespace {

/// What one of the two passes has to do, beside the other resources.
struct Phase {
    double pass_s = 0;  ///< forward or backward
    double host_s = 0;  ///< the processor's part: updates, joining weights, taking gradients in
    double nvme_read_bytes = 0;
    double nvme_written_bytes = 0;
    double to_device_bytes = 0;
    double to_host_bytes = 0;
};

double seconds_of(const Phase& phase, const StepCosts& costs) {
    // One processor does both, or a GPU and a processor one each. On one they get in each other's
    // way while both are there.
    const double together_s = std::min(phase.pass_s, phase.host_s);
    const double compute_s = costs.passes_by == PassesBy::cpu
                                 ? phase.pass_s + phase.host_s + (costs.sharing - 1) * together_s
                                 : std::max(phase.pass_s, phase.host_s);
    return std::max({compute_s,
                     nvme_time_s(costs.rates, phase.nvme_read_bytes, phase.nvme_written_bytes),
                     link_time_s(costs.rates, phase.to_device_bytes, phase.to_host_bytes)});
}

void add_update(Phase& phase, const StepCosts& costs) {
    phase.host_s += costs.update_s + costs.checksums_s;
    phase.nvme_read_bytes += static_cast<double>(costs.update_read_bytes + costs.gradient_bytes);
    phase.nvme_written_bytes += static_cast<double>(costs.update_written_bytes);
}

/// Commits begin when an update is over. Where that is with the forward pass, they have the
/// backward pass until the next one; else the next one waits at once.
CommitPrediction predict_commit(const StepCosts& costs, double free_s) {
    CommitPrediction commit;
    commit.seconds = nvme_time_s(costs.rates, 0, static_cast<double>(costs.commit_bytes));
    commit.hidden_s = std::min(commit.seconds, free_s);
    commit.exposed_s = commit.seconds - commit.hidden_s;
    return commit;
}

/// Of a step that takes `step_s` without them.
double commit_share_s(const StepCosts& costs, const CommitPrediction& commit, double step_s) {
    const auto& interval = costs.commit_interval;
    if (interval.steps > 0)
        return commit.exposed_s / static_cast<double>(interval.steps);
    return interval.seconds > 0 ? commit.exposed_s * step_s / interval.seconds : 0;
}

}  // namespace

StepPrediction predict_step(const StepCosts& costs, offload::UpdateTiming timing) {
    const double half_weights = static_cast<double>(costs.weight_read_bytes) / 2;
    const auto inputs = static_cast<double>(costs.input_bytes);
    const auto input_link = static_cast<double>(costs.input_link_bytes);
    const double half_link = (static_cast<double>(costs.to_device_bytes) - input_link) / 2;
    Phase forward{.pass_s = costs.pass.forward_s,
                  .host_s = (costs.weights_s + costs.inputs_s) / 2,
                  .nvme_read_bytes = half_weights,
                  .nvme_written_bytes = inputs,
                  .to_device_bytes = half_link,
                  .to_host_bytes = input_link};
    Phase backward{.pass_s = costs.pass.backward_s,
                   .host_s = (costs.weights_s + costs.inputs_s) / 2 + costs.gradients_s,
                   .nvme_read_bytes = half_weights + inputs,
                   .nvme_written_bytes = static_cast<double>(costs.gradient_bytes),
                   .to_device_bytes = half_link + input_link,
                   .to_host_bytes = static_cast<double>(costs.to_host_bytes) - input_link};
    const bool waits = timing == offload::UpdateTiming::after_norm;
    add_update(waits ? forward : backward, costs);
    StepPrediction prediction;
    prediction.lanes = lane_times(costs.rates, costs.demand());
    prediction.bound = step_bound(prediction.lanes);
    prediction.forward_s = seconds_of(forward, costs);
    prediction.backward_s = seconds_of(backward, costs);
    const double step_s =
        std::max(prediction.forward_s + prediction.backward_s, prediction.lanes.dram_s);
    prediction.commit = predict_commit(costs, waits ? prediction.backward_s : 0);
    prediction.commit_s = commit_share_s(costs, prediction.commit, step_s);
    prediction.seconds = step_s + prediction.commit_s;
    return prediction;
}

std::uint64_t hiding_tokens(const StepCosts& costs, std::uint64_t tokens_per_step) {
    // Layers' inputs grow with the tokens as the passes do: they take of what hides the rest.
    auto state = costs;
    state.input_bytes = 0;
    const double nvme_s = lane_times(costs.rates, state.demand()).nvme_s;
    const double inputs_s = lane_times(costs.rates, costs.demand()).nvme_s - nvme_s;
    const double pass_s = costs.pass.forward_s + costs.pass.backward_s - inputs_s;
    if (!(nvme_s > 0) || !(pass_s > 0))
        return 0;
    return static_cast<std::uint64_t>(
        std::ceil(nvme_s / pass_s * static_cast<double>(tokens_per_step)));
}

}  // namespace spillway::engine
