// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "engine/cli/console.h"
#include "engine/data/byte_corpus.h"
#include "engine/plan/bound.h"
#include "engine/plan/planned_run.h"
#include "engine/plan/step_costs.h"
#include "engine/train/progress_replay.h"
#include "engine/train/run_record.h"
#include "engine/train/stop_request.h"
#include "offload/relocation.h"
#include "offload/state_folder.h"
#include "offload/step_trace.h"

namespace spillway::engine {

/// Everything a run needs that is there before its first step. Destroyed from the bottom up: what
/// uses something stands below it.
struct RunSetup {
    PlannedRun run;  ///< its settings: as used
    std::unique_ptr<ByteCorpus> corpus;
    std::optional<ProgressReplay> replay;
    RunMachine machine;
    std::size_t overhead_bytes = 0;  ///< resident before any budget was touched
    std::optional<StepBound> bound;  ///< none: `--probe off`
    /// Null: none is wanted, or it is to lie where the run's folder is yet to be made.
    std::unique_ptr<offload::StepTrace> trace;
    std::optional<offload::StateFolder> folder;  ///< there; the engine takes it
    std::optional<offload::Relocation> moved;    ///< the state, to the drives of the settings
};

/// The trace that the settings name, null for none. Throws std::system_error.
[[nodiscard]] std::unique_ptr<offload::StepTrace> open_trace(const TrainSettings& settings,
                                                             Console& console);

/// Checks all that the user asked for against the run's record and the machine, plans, measures
/// what the bound needs, and opens, moves or creates the run's folder, last of all. Tells the
/// console the budgets and the plan. Throws UsageError (with all problems), offload::PlanRefused,
/// offload::FolderRefused; nothing of a new run is on the disk then. A move of the state ends with
/// offload::RelocationStopped where a stop is asked for.
[[nodiscard]] RunSetup prepare_run(TrainSettings settings, const GivenSettings& given,
                                   const StopRequest& stop, Console& console);

}  // namespace spillway::engine
