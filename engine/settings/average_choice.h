// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <optional>
#include <string>

#include "engine/settings/train_settings.h"
#include "offload/average_rule.h"

namespace spillway::engine {

/// Of sound settings.
[[nodiscard]] std::optional<offload::AverageRule> average_rule(const TrainSettings& settings);

/// Why the weights of a run whose last commit holds that many updates cannot be read averaged; ""
/// if they can.
[[nodiscard]] std::string average_problem(const TrainSettings& settings, std::uint64_t updates);

}  // namespace spillway::engine
