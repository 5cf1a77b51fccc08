// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/model/layer_input_places.h"

#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <vector>

#include <catch2/catch.hpp>

using spillway::engine::LayerInputPlaces;
using spillway::engine::LostInputs;

TEST_CASE("layer input places: with one for each layer nobody leaves") {
    for (const std::size_t given : {0u, 5u}) {
        const LayerInputPlaces places(5, given);
        CHECK(places.places() == 5);
        CHECK(places.leaving().empty());
        std::set<std::size_t> taken;
        for (std::size_t layer = 0; layer < 5; ++layer)
            taken.insert(places.place_of(layer));
        CHECK(taken.size() == 5);
    }
    CHECK(LayerInputPlaces(1, 1).places() == 1);
}

TEST_CASE("layer input places: a pass finds every input where it looks for it") {
    for (std::size_t layers = 2; layers <= 13; ++layers) {
        for (std::size_t count = 2; count <= layers; ++count) {
            CAPTURE(layers, count);
            const LayerInputPlaces places(layers, count);
            CHECK(places.leaving().size() == layers - count);
            std::vector<std::optional<std::size_t>> holder(count);
            const auto list = places.leaving();
            const std::set<std::size_t> leaving(list.begin(), list.end());
            std::set<std::size_t> away;
            for (std::size_t layer = 0; layer < layers; ++layer) {
                REQUIRE(places.place_of(layer) < count);
                auto& place = holder[places.place_of(layer)];
                CHECK(place == places.former(layer));
                // Its maker still reads the layer before it, where that is.
                CHECK((layer == 0 || places.place_of(layer) != places.place_of(layer - 1)));
                if (place) {
                    CHECK(places.leaves(*place));
                    away.insert(*place);
                }
                place = layer;
            }
            CHECK(away == leaving);
            for (std::size_t layer = layers; layer-- > 0;) {
                auto& place = holder[places.place_of(layer)];
                CHECK(place == layer);
                place = places.former(layer);
            }
        }
    }
}

TEST_CASE("layer input places: what is made again has what it is made from") {
    for (std::size_t layers = 1; layers <= 13; ++layers) {
        for (std::size_t count = LayerInputPlaces::fewest(layers, LostInputs::made_again);
             count <= layers; ++count) {
            CAPTURE(layers, count);
            const LayerInputPlaces places(layers, count, LostInputs::made_again);
            const auto leaving = places.leaving();
            CHECK(leaving.size() == layers - count);
            std::map<std::size_t, std::size_t> holders;
            for (std::size_t layer = 0; layer < layers; ++layer) {
                REQUIRE(places.place_of(layer) < count);
                ++holders[places.place_of(layer)];
            }
            for (const auto layer : leaving) {
                REQUIRE(layer > 0);
                CHECK(holders[places.place_of(layer - 1)] == 1);
            }
        }
    }
    CHECK_THROWS_AS(LayerInputPlaces(8, 4, LostInputs::made_again), std::invalid_argument);
}

TEST_CASE("layer input places: those that stay are spread over the layers") {
    const LayerInputPlaces places(12, 5);
    std::vector<std::size_t> own;
    for (std::size_t layer = 0; layer < 12; ++layer)
        if (places.place_of(layer) >= 2)
            own.push_back(layer);
    CHECK(own == std::vector<std::size_t>{2, 6, 10});
}

TEST_CASE("layer input places: too few or too many are refused") {
    CHECK_THROWS_AS(LayerInputPlaces(4, 1), std::invalid_argument);
    CHECK_THROWS_AS(LayerInputPlaces(4, 5), std::invalid_argument);
}
