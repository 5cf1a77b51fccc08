// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "offload/step_trace.h"

namespace spillway::engine {

/// As a result shows a trace: where it is, and for each lane its busy and idle seconds, which add
/// up to `wall_s`. Causes without any time are left out.
[[nodiscard]] inline nlohmann::ordered_json trace_json(const offload::TraceSummary& trace) {
    using Json = nlohmann::ordered_json;
    auto lanes = Json::array();
    for (const auto& lane : trace.lanes) {
        auto idle = Json::object();
        for (std::size_t cause = 0; cause < offload::trace_causes; ++cause) {
            if (lane.idle_s[cause] > 0)
                idle[std::string(trace_cause_name(static_cast<offload::TraceCause>(cause)))] =
                    lane.idle_s[cause];
        }
        lanes.push_back({{"name", lane.name}, {"busy_s", lane.busy_s}, {"idle_s", idle}});
    }
    return {{"file", trace.file.string()},
            {"failure", trace.failure},
            {"wall_s", trace.wall_s},
            {"events", trace.events},
            {"dropped_events", trace.dropped_events},
            {"lanes", std::move(lanes)}};
}

}  // namespace spillway::engine
