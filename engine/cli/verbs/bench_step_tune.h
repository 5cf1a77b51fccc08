// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <optional>

#include "engine/cli/console.h"
#include "engine/cli/verbs/bench_step_run.h"
#include "engine/measure/stored_tuning.h"
#include "engine/settings/train_settings.h"
#include "engine/settings/tuning.h"

namespace spillway::engine {

/// Bytes that one step reads and writes with these options, and that tuning's chunks and windows;
/// none: they do not fit --host-mem.
[[nodiscard]] std::optional<std::uint64_t> step_bench_traffic(const StepBenchOptions& options,
                                                              const Tuning& tuning);

/// Searches for so long for a tuning of steps with these options, whose settings they were made
/// from, keeps it in the profile and sets it in `options`. None: there was no room for the search,
/// or it was stopped; the console is told.
[[nodiscard]] std::optional<StoredTuning> tune_step_bench(TrainSettings settings, double limit_s,
                                                          StepBenchOptions& options,
                                                          Console& console);

}  // namespace spillway::engine
