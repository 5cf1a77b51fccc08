// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <vector>

#include <nlohmann/json.hpp>

#include "offload/plan.h"

namespace spillway::engine {

/// A budget's lines, as every report shows them.
[[nodiscard]] inline nlohmann::ordered_json items_json(
    const std::vector<offload::MemoryItem>& items) {
    auto list = nlohmann::ordered_json::array();
    for (const auto& item : items)
        list.push_back({{"name", item.name}, {"bytes", item.bytes}});
    return list;
}

}  // namespace spillway::engine
