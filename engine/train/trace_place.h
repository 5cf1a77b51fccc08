// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <string>
#include <vector>

#include "engine/settings/train_settings.h"

namespace spillway::engine {

/// A sentence for each file that is given, read or kept beside the trace and that the trace would
/// take the place of, however the two are spelled and whether they are there yet. None without a
/// trace.
[[nodiscard]] std::vector<std::string> trace_problems(const TrainSettings& settings);

}  // namespace spillway::engine
