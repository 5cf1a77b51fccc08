// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <optional>

#include "engine/cli/console.h"
#include "engine/cli/verbs/bench_step_run.h"
#include "engine/measure/stored_tuning.h"
#include "engine/settings/train_settings.h"

namespace spillway::engine {

/// Searches for so long for a tuning of steps with these options, whose settings they were made
/// from, keeps it in the profile and sets it in `options`. None: there was no room for the search,
/// or it was stopped; the console is told.
[[nodiscard]] std::optional<StoredTuning> tune_step_bench(TrainSettings settings, double limit_s,
                                                          StepBenchOptions& options,
                                                          Console& console);

}  // namespace spillway::engine
