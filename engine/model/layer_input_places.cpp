// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/model/layer_input_places.h"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

namespace spillway::engine {
namespace {

std::size_t shared_places_of(LostInputs lost) {
    return lost == LostInputs::moved ? 2 : 1;
}

/// `chosen` of `count`, evenly spread, the i-th at `each` x its number + `first`.
void choose(std::vector<bool>& layers, std::size_t chosen, std::size_t count, std::size_t each,
            std::size_t first, bool value) {
    for (std::size_t i = 0; i < chosen; ++i)
        layers[each * ((2 * i + 1) * count / (2 * chosen)) + first] = value;
}

}  // namespace

std::size_t LayerInputPlaces::fewest(std::size_t layers, LostInputs lost) noexcept {
    // Every second layer may lose its place to the next but one, but for the last of those.
    return lost == LostInputs::moved ? std::min<std::size_t>(layers, 2)
                                     : layers - layers / 2 + (layers > 1 ? 1 : 0);
}

LayerInputPlaces::LayerInputPlaces(std::size_t layers, std::size_t places, LostInputs lost)
    : places_(places == 0 ? layers : places), layers_(layers) {
    if (places_ > layers || places_ < fewest(layers, lost))
        throw std::invalid_argument(
            fmt::format("{} places for the inputs of {} layers: choose {} to {}", places, layers,
                        fewest(layers, lost), layers));
    const auto shared_places = shared_places_of(lost);
    const bool shares = places_ < layers;
    const auto own = shares ? places_ - shared_places : layers;
    std::vector<bool> has_own(layers, lost == LostInputs::made_again);
    if (lost == LostInputs::moved)
        choose(has_own, own, layers, 1, 0, true);
    else  // of the odd ones
        choose(has_own, layers - own, layers / 2, 2, 1, false);
    std::size_t next_own = shares ? shared_places : 0;
    std::vector<std::size_t> sharing;
    for (std::size_t layer = 0; layer < layers; ++layer) {
        if (has_own[layer]) {
            layers_[layer].place = next_own++;
            continue;
        }
        layers_[layer].place = sharing.size() % shared_places;
        if (sharing.size() >= shared_places) {
            const auto former = sharing[sharing.size() - shared_places];
            layers_[layer].former = former;
            layers_[former].leaves = true;
        }
        sharing.push_back(layer);
    }
}

std::vector<std::size_t> LayerInputPlaces::leaving() const {
    std::vector<std::size_t> all;
    for (std::size_t layer = 0; layer < layers_.size(); ++layer)
        if (layers_[layer].leaves)
            all.push_back(layer);
    return all;
}

}  // namespace spillway::engine
