// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/plan/plan_advice.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "engine/train/train_report.h"

namespace spillway::engine {
namespace {

constexpr double least_gain = 1.03;
constexpr std::size_t most_advice = 2;

/// Of one kind only the best is told: twice the batch says nothing beside four times the batch.
enum class AdviceKind { batch, memory, timing };

struct Candidate {
    AdviceKind kind;
    std::string change;
    std::string meaning;
    TrainSettings settings;
    MemoryBudgets budgets;
};

Candidate unchanged(const PlannedRun& run, AdviceKind kind) {
    return {.kind = kind,
            .change = {},
            .meaning = {},
            .settings = run.settings,
            .budgets = run.budgets};
}

/// Planned anew, placement included: what was chosen for the run need not fit the change.
std::optional<PlanAdvice> rate(const Candidate& candidate, const PlannedRun& run,
                               const MachineSpeed& speed, double tokens_per_s) {
    PlannedRun changed{candidate.settings, run.layout, candidate.budgets, {}};
    try {
        changed.plan = plan_training(changed.layout, changed.settings, changed.settings.threads,
                                     changed.budgets, nvme_tier(changed.settings));
    } catch (const offload::PlanRefused&) {
        return std::nullopt;
    }
    const auto prediction =
        predict_step(step_costs(speed, changed), update_timing(changed.settings));
    PlanAdvice advice{.change = candidate.change,
                      .meaning = candidate.meaning,
                      .predicted_s = prediction.seconds};
    advice.tokens_per_s =
        static_cast<double>(tokens_per_step(changed.settings)) / prediction.seconds;
    advice.gain = advice.tokens_per_s / tokens_per_s;
    return advice;
}

void add_larger_batches(const PlannedRun& run, std::vector<Candidate>& candidates) {
    for (const std::uint32_t factor : {2U, 4U}) {
        auto candidate = unchanged(run, AdviceKind::batch);
        candidate.settings.batch *= factor;
        candidate.change = fmt::format("--batch {}", candidate.settings.batch);
        candidate.meaning =
            "more tokens a step for the same traffic; another run, with another "
            "loss curve";
        candidates.push_back(std::move(candidate));
    }
}

/// The budget with which nothing would lie on the drive any more, and one half way.
void add_larger_memory(const PlannedRun& run, const AvailableMemory& available,
                       std::vector<Candidate>& candidates) {
    const auto& plan = run.plan.offload;
    const auto missing = plan.nvme_read_bytes_per_step;
    if (missing == 0)
        return;
    for (const std::size_t part : {std::size_t{2}, std::size_t{1}}) {
        auto candidate = unchanged(run, AdviceKind::memory);
        candidate.budgets.host_bytes += static_cast<std::size_t>(missing) / part;
        if (candidate.budgets.device_kind == cuda::MemoryKind::host)
            candidate.budgets.device_bytes = candidate.budgets.host_bytes;
        const auto mebibytes = (candidate.budgets.host_bytes + (1U << 20) - 1) >> 20;
        candidate.settings.host_mem = mebibytes << 20;
        candidate.change = fmt::format("--host-mem {}MiB", mebibytes);
        candidate.meaning = candidate.budgets.host_bytes > available.bytes
                                ? fmt::format("more than the {} this machine has free: more memory",
                                              human_bytes(available.bytes))
                                : "less passes over the drive";
        candidates.push_back(std::move(candidate));
    }
}

void add_update_in_backward(const PlannedRun& run, std::vector<Candidate>& candidates) {
    auto candidate = unchanged(run, AdviceKind::timing);
    auto& clip = candidate.settings.clip;
    if (clip.kind != ClipKind::value)  // which waits for nothing
        clip.kind = ClipKind::off;
    candidate.settings.nonfinite = "stop";
    if (update_timing(candidate.settings) == update_timing(run.settings))
        return;  // it is so already, or the optimizer waits for whole tensors
    candidate.change = fmt::format("--clip {} --nonfinite stop", clip_text(clip));
    candidate.meaning = fmt::format(
        "updates need not wait for the norm, and no gradient waits on the drive; another run, {}",
        clip.kind == ClipKind::off ? "without clipping" : "which stops at a non-finite gradient");
    candidates.push_back(std::move(candidate));
}

}  // namespace

std::vector<PlanAdvice> advise(const PlannedRun& run, const MachineSpeed& speed,
                               const StepPrediction& prediction, const AvailableMemory& available) {
    std::vector<Candidate> candidates;
    add_larger_batches(run, candidates);
    add_larger_memory(run, available, candidates);
    add_update_in_backward(run, candidates);
    const double tokens_per_s =
        static_cast<double>(tokens_per_step(run.settings)) / prediction.seconds;
    struct Rated {
        AdviceKind kind;
        PlanAdvice advice;
    };
    std::vector<Rated> all;
    for (const auto& candidate : candidates) {
        auto advice = rate(candidate, run, speed, tokens_per_s);
        if (advice && advice->gain >= least_gain)
            all.push_back({candidate.kind, *std::move(advice)});
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const Rated& a, const Rated& b) { return a.advice.gain > b.advice.gain; });
    std::vector<PlanAdvice> best;
    std::vector<AdviceKind> told;
    for (auto& rated : all) {
        if (best.size() < most_advice &&
            std::find(told.begin(), told.end(), rated.kind) == told.end()) {
            told.push_back(rated.kind);
            best.push_back(std::move(rated.advice));
        }
    }
    return best;
}

}  // namespace spillway::engine
