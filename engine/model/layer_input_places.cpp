// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/model/layer_input_places.h"

#include <stdexcept>

#include <fmt/format.h>

namespace spillway::engine {
namespace {

constexpr std::size_t shared_places = 2;

}  // namespace

LayerInputPlaces::LayerInputPlaces(std::size_t layers, std::size_t places)
    : places_(places == 0 ? layers : places), layers_(layers) {
    if (places_ > layers || (places_ < shared_places && places_ < layers))
        throw std::invalid_argument(
            fmt::format("{} places for the inputs of {} layers: choose 2 to the number of layers",
                        places, layers));
    const bool shares = places_ < layers;
    const auto own = shares ? places_ - shared_places : layers;
    std::vector<bool> has_own(layers, false);
    for (std::size_t i = 0; i < own; ++i)
        has_own[(2 * i + 1) * layers / (2 * own)] = true;
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
