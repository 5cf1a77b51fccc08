// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cuda/device.h"
#include "engine/cli/console.h"
#include "engine/measure/machine_memory.h"
#include "engine/plan/memory_plan.h"
#include "engine/plan/run_tuning.h"
#include "engine/settings/train_settings.h"

namespace spillway::engine {

/// A run fitted to this machine's memory; nothing is allocated, measured or written yet.
struct PlannedRun {
    TrainSettings settings;
    ModelLayout layout;
    MemoryBudgets budgets;
    TrainPlan plan;
    std::string device = {};  ///< its identity, as profiles name it
    RunTuning tuning = {};    ///< settings.tuning holds what it takes from flags and profile
};

/// problems_of(), what the settings name that is not there on this machine, and a trace in another
/// file's place.
[[nodiscard]] std::vector<std::string> problems_here(const TrainSettings& settings,
                                                     SettingsUse use);

/// Fills in what was left to be chosen and does not depend on memory. Throws UsageError.
void resolve_choices(TrainSettings& settings);

/// GPUs by rank.
using Gpus = std::vector<std::unique_ptr<cuda::Device>>;

/// The GPUs that the settings name, none where they name none. A run has them from its planning to
/// its end: the driver's contexts take host memory, which is to be gone before that is looked at.
/// Throws UsageError.
[[nodiscard]] Gpus open_gpus(const TrainSettings& settings);

/// Of resolved settings and what open_gpus() made of them. Budgets not given become what
/// `available` has free minus a margin, which the console is told. What the profile knows to be
/// faster than the defaults is taken where it fits. Throws offload::PlanRefused naming what is
/// short.
[[nodiscard]] PlannedRun fit_run(TrainSettings settings, const Gpus& gpus,
                                 const AvailableMemory& available, Console& console);

/// Where the extents of a run lie: an existing folder, the present one if no folder is named.
[[nodiscard]] std::filesystem::path drive_folder(const TrainSettings& settings);
/// Throws offload::PlanRefused unless the plan's extents fit the drive.
void require_disk(const TrainPlan& plan, const TrainSettings& settings);

}  // namespace spillway::engine
