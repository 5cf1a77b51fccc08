// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "engine/cli/console.h"
#include "engine/measure/stored_tuning.h"
#include "engine/measure/tuner.h"
#include "engine/plan/planned_run.h"
#include "engine/plan/step_costs.h"

namespace spillway::engine {

/// What a search takes of a run that is long enough for it by itself.
inline constexpr double tuning_s = 10;
/// A run that is not shorter loses a fiftieth of its time at most.
inline constexpr double least_tuned_run_s = 480;

/// Of a run that is gone on with: what earlier sessions did.
struct WorkDone {
    std::uint64_t steps = 0;
    double elapsed_s = 0;
};

/// How long to search for a faster tuning of this run. 0, not at all: its profile tells of a search
/// already, nothing of it passes through a drive, flags set a part of the tuning, what is left of
/// it is short (`step_s`: a step's least seconds, 0 if not known), or `--tune` says so.
[[nodiscard]] double search_s(const PlannedRun& run, double step_s, const WorkDone& done = {});

/// Those of the settings: searched for unless the profile has `bench storage --tune`'s of any.
[[nodiscard]] TunedDrives tuned_drives(const TrainSettings& settings);

/// In a profile, "" for none. Returns where it was kept, or why it was not.
[[nodiscard]] std::string keep_tuning(const std::filesystem::path& path, const StoredTuning& found);

/// Searches for so long, keeps what it finds in the profile, and has the run go by it. The console
/// is told. A search that `stop` ends changes nothing.
void tune_on_first_use(PlannedRun& run, const RunMachine& machine, double limit_s,
                       const std::function<bool()>& stop, Console& console);

}  // namespace spillway::engine
