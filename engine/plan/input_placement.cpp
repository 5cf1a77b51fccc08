// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/plan/input_placement.h"

#include <algorithm>

#include "engine/model/layer_input_places.h"

namespace spillway::engine {

offload::ActivationLayout input_layout(const Gpt2Config& config, const BatchShape& shape,
                                       std::size_t in_host) {
    using offload::ActivationTier;
    const auto tokens = std::size_t{shape.sequences} / shape.micro_batches * shape.sequence_tokens;
    offload::ActivationLayout layout{
        .tiers = std::vector<ActivationTier>(config.layers, ActivationTier::device),
        .micro_batches = shape.micro_batches,
        .bytes = tokens * config.hidden * sizeof(float)};
    if (shape.lost_inputs == LostInputs::made_again) {
        for (const auto layer : inputs_made_again(config, shape))
            layout.tiers[layer] = ActivationTier::none;
        return layout;
    }
    const auto leaving = LayerInputPlaces(config.layers, shape.input_places).leaving();
    for (std::size_t i = 0; i < leaving.size(); ++i)
        layout.tiers[leaving[i]] = (i + 1) * in_host / leaving.size() > i * in_host / leaving.size()
                                       ? ActivationTier::host
                                       : ActivationTier::nvme;
    return layout;
}

std::size_t leaving_inputs(const Gpt2Config& config, const BatchShape& shape) noexcept {
    return shape.input_places == 0 ? 0 : config.layers - shape.input_places;
}

std::vector<std::size_t> inputs_made_again(const Gpt2Config& config, const BatchShape& shape) {
    if (shape.lost_inputs == LostInputs::moved)
        return {};
    return LayerInputPlaces(config.layers, shape.input_places, shape.lost_inputs).leaving();
}

bool dearer_than_inputs_resident(const offload::OffloadPlan& plan) {
    for (const auto plane : {offload::Plane::weight, offload::Plane::residue})
        if (!std::ranges::all_of(plan.resident[offload::index_of(plane)],
                                 [](std::uint8_t resident) { return resident != 0; }))
            return false;
    return true;
}

}  // namespace spillway::engine
