// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/settings/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

namespace spillway::engine {
namespace {

constexpr std::array<std::pair<std::string_view, ScheduleShape>, 3> names{
    {{"constant", ScheduleShape::constant},
     {"linear", ScheduleShape::linear},
     {"cosine", ScheduleShape::cosine}}};

}  // namespace

ScheduleShape parse_schedule_shape(std::string_view name) {
    for (const auto& [known, shape] : names)
        if (known == name)
            return shape;
    throw std::invalid_argument(
        fmt::format("schedule '{}' is not known; there are constant, linear and cosine", name));
}

std::string_view schedule_shape_name(ScheduleShape shape) noexcept {
    return std::find_if(names.begin(), names.end(),
                        [&](const auto& n) { return n.second == shape; })
        ->first;
}

Schedule::Schedule(const ScheduleOptions& options) : options_(options) {
    if (!std::isfinite(options.peak) || options.peak < 0)
        throw std::invalid_argument(
            fmt::format("learning rate {}: must be finite and not negative", options.peak));
    if (!(options.final_part >= 0 && options.final_part <= 1))
        throw std::invalid_argument(
            fmt::format("final learning rate of {} of the peak: must be a part from 0 to 1",
                        options.final_part));
}

double Schedule::at_update(std::uint64_t update, std::uint64_t total_updates) const {
    const std::uint64_t warmup_updates = options_.warmup_updates;
    if (warmup_updates > total_updates)
        throw std::invalid_argument(
            fmt::format("warm-up of {} updates: longer than the schedule of {}; shorten it",
                        warmup_updates, total_updates));
    if (update < warmup_updates)
        return options_.peak * warmup(update);
    if (update >= total_updates)
        return options_.peak * shape(1);
    return options_.peak * shape(static_cast<double>(update - warmup_updates) /
                                 static_cast<double>(total_updates - warmup_updates));
}

double Schedule::at_progress(std::uint64_t update, double progress) const {
    if (!(progress >= 0 && progress <= 1))
        throw std::invalid_argument(
            fmt::format("progress {}: must be a part from 0 to 1 of the budget", progress));
    return options_.peak * shape(progress) * warmup(update);
}

double Schedule::warmup(std::uint64_t update) const noexcept {
    return update >= options_.warmup_updates
               ? 1.0
               : static_cast<double>(update + 1) / static_cast<double>(options_.warmup_updates);
}

double Schedule::shape(double x) const noexcept {
    const double f = options_.final_part;
    switch (options_.shape) {
        case ScheduleShape::constant:
            return 1;
        case ScheduleShape::linear:
            return 1 - (1 - f) * x;
        case ScheduleShape::cosine:
            return f + (1 - f) * (1 + std::cos(std::numbers::pi * x)) / 2;
    }
    return 1;
}

}  // namespace spillway::engine
