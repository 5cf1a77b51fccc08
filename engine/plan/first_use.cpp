// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/plan/first_use.h"

#include <algorithm>
#include <ctime>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "engine/cli/units.h"
#include "engine/measure/drive_choice.h"
#include "engine/measure/profile.h"
#include "engine/measure/tuner.h"
#include "engine/train/train_report.h"

namespace spillway::engine {
namespace {

bool passes_through_drives(const TrainPlan& plan) noexcept {
    return plan.offload.pipeline_slots != 0 && plan.offload.nvme_written_bytes_per_step != 0;
}

/// How a plan for each tuning compares, each planned once.
class TrafficRatios {
  public:
    explicit TrafficRatios(const PlannedRun& run) : run_(run), usual_(traffic_of(run.plan)) {}

    double operator()(const Tuning& tuning) {
        for (const auto& [known, ratio] : known_) {
            if (known == tuning)
                return ratio;
        }
        known_.emplace_back(tuning, planned(tuning));
        return known_.back().second;
    }

  private:
    static double traffic_of(const TrainPlan& plan) {
        return static_cast<double>(plan.offload.nvme_read_bytes_per_step +
                                   plan.offload.nvme_written_bytes_per_step);
    }
    [[nodiscard]] double planned(const Tuning& tuning) const {
        auto settings = run_.settings;
        settings.tuning = tuning;
        try {
            const auto plan = plan_training(run_.layout, settings, settings.threads, run_.budgets,
                                            nvme_tier(settings));
            return same_work(plan.shape, run_.plan.shape) ? traffic_of(plan) / usual_ : 0;
        } catch (const offload::PlanRefused&) {
            return 0;
        }
    }

    const PlannedRun& run_;
    double usual_;
    std::vector<std::pair<Tuning, double>> known_;
};

}  // namespace

TunedDrives tuned_drives(const TrainSettings& settings) {
    const auto path = profile_path(settings);
    const auto stored = path.empty() ? StoredProfiles{} : load_profiles(path);
    const bool known = std::ranges::any_of(nvme_folders(settings.nvme), [&](const auto& folder) {
        return find_drive_settings(stored.drives, file_system_identity(folder)) != nullptr;
    });
    return known ? TunedDrives::left_alone : TunedDrives::searched;
}

std::string keep_tuning(const std::filesystem::path& path, const StoredTuning& found) {
    if (path.empty())
        return "not kept, for want of a home for a profile";
    try {
        store_tuning(path, found);
        return "kept in " + path.string();
    } catch (const std::system_error& error) {
        return fmt::format("not kept: {}", error.what());
    }
}

double search_s(const PlannedRun& run, double step_s, const WorkDone& done) {
    const auto& settings = run.settings;
    if (settings.tune == "off" || run.tuning.searched || settings.tuning != Tuning{} ||
        !passes_through_drives(run.plan))
        return 0;
    if (settings.tune != "auto")
        return parse_duration_s(settings.tune);
    const auto steps_left = settings.steps - std::min(settings.steps, done.steps);
    const auto left_s = settings.budget_s > 0 ? settings.budget_s - done.elapsed_s
                                              : step_s * static_cast<double>(steps_left);
    return settings.probe == "on" && left_s >= least_tuned_run_s ? tuning_s : 0;
}

void tune_on_first_use(PlannedRun& run, const RunMachine& machine, double limit_s,
                       const std::function<bool()>& stop, Console& console) {
    console.line(fmt::format(
        "tuning: up to {:.3g} s for faster chunks, windows, I/O and threads, once (--tune off: "
        "none)",
        limit_s));
    const bool here = machine.compute->kernels() == nullptr;
    const bool fetches = run.plan.offload.weight_read_buffers != 0;
    TrafficRatios ratios(run);
    std::optional<TuningOutcome> outcome;
    try {
        outcome = tune({.settings = run.settings,
                        .defaults = run.tuning.used,
                        .drives = tuned_drives(run.settings),
                        .parameters = run.layout.order.parameters(),
                        .memory_bytes = run.plan.host_bytes(run.budgets.device_kind),
                        .passes = here ? machine.pool.get() : nullptr,
                        .device = fetches ? &machine.engine_device() : nullptr,
                        .compute = fetches ? &machine.engine_compute() : nullptr,
                        .device_bytes = run.plan.offload.device_bytes,
                        .traffic_ratio = [&](const Tuning& t) { return ratios(t); },
                        .limit_s = limit_s,
                        .stop = stop});
    } catch (const std::system_error& error) {
        console.line(
            fmt::format("tuning: none, the defaults stand: {}; --tune off leaves the search out",
                        error.what()));
        return;
    }
    if (!outcome) {
        console.line(
            "tuning: none, since there is no room for a search in the run's memory; the "
            "defaults stand");
        return;
    }
    if (stop())
        return;
    const StoredTuning found{.key = tuning_key(run.settings, run.device, run.budgets.host_bytes),
                             .measured_unix_s = static_cast<std::int64_t>(std::time(nullptr)),
                             .values = differences(outcome->values, run.tuning.used),
                             .gain = outcome->gain};
    auto tuned = plan_with_tuning(run.layout, run.settings, run.budgets, found);
    run.settings = std::move(tuned.settings);
    run.plan = std::move(tuned.plan);
    run.tuning = std::move(tuned.tuning);
    const auto kept = keep_tuning(profile_path(run.settings), found);
    if (found.values == Tuning{})
        console.line(
            fmt::format("tuning: nothing is clearly faster than the defaults ({} "
                        "comparisons); {}",
                        outcome->compared, kept));
    else
        console.line(fmt::format("tuning: {}: {:.2f} times as fast as the defaults; {}",
                                 tuning_text(run.tuning), found.gain, kept));
}

}  // namespace spillway::engine
