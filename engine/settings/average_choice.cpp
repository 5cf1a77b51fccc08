// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/settings/average_choice.h"

#include <fmt/format.h>

namespace spillway::engine {
std::optional<offload::AverageRule> average_rule(const TrainSettings& settings) {
    return offload::parse_average(settings.average);
}

std::string average_problem(const TrainSettings& settings, std::uint64_t updates) {
    const auto rule = average_rule(settings);
    if (!rule)
        return "the run keeps no average of its weights; train with --average ema:DECAY or "
               "swa:EVERY keeps one";
    if (!rule->is_there(updates))
        return fmt::format(
            "the run's average ({}) takes up weights for the first time after update {}; its last "
            "commit holds {}",
            settings.average, rule->every, updates);
    return "";
}

}  // namespace spillway::engine
