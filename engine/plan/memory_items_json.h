// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/plan/memory_plan.h"
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

/// Where layers' inputs rest from forward to backward.
[[nodiscard]] inline nlohmann::ordered_json layer_inputs_json(const TrainPlan& plan) {
    using offload::ActivationTier;
    nlohmann::ordered_json tiers;
    for (const auto& [name, tier] :
         {std::pair{"device", ActivationTier::device}, std::pair{"host", ActivationTier::host},
          std::pair{"nvme", ActivationTier::nvme}})
        tiers[name] = {{"layers", plan.offload.activations.layers_in(tier)},
                       {"bytes", plan.inputs_in(tier)}};
    tiers["made_again"] = {{"layers", plan.offload.activations.layers_in(ActivationTier::none)}};
    return tiers;
}

}  // namespace spillway::engine
