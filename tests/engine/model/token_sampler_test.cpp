// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/model/token_sampler.h"

#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include <catch2/catch.hpp>

namespace spillway::engine {

using Catch::Matchers::Contains;

TEST_CASE("token_sampler: temperature 0 takes the likeliest, the first of equals") {
    TokenSampler sampler({.temperature = 0});
    CHECK(sampler.draw(std::array{1.0f, 3.0f, 2.0f, 3.0f}) == 1);
    CHECK(sampler.draw(std::array{-5.0f}) == 0);
}

TEST_CASE("token_sampler: frequencies are those of the softmax") {
    const std::vector<float> logits{0.0f, 1.0f, 2.0f, -30.0f};
    for (const double temperature : {1.0, 0.5, 3.0}) {
        TokenSampler sampler({.temperature = temperature, .seed = 11});
        std::vector<double> counts(logits.size());
        constexpr int draws = 40000;
        for (int i = 0; i < draws; ++i)
            counts[static_cast<std::size_t>(sampler.draw(logits))] += 1;
        double sum = 0;
        for (const float logit : logits)
            sum += std::exp(logit / temperature);
        for (std::size_t i = 0; i < logits.size(); ++i) {
            const double expected = std::exp(logits[i] / temperature) / sum;
            // Six standard deviations of a count.
            const double margin = 6 * std::sqrt(expected * (1 - expected) / draws) + 1e-9;
            CHECK(std::abs(counts[i] / draws - expected) <= margin);
        }
    }
}

TEST_CASE("token_sampler: only the top k are drawn, and a seed repeats its draws") {
    const std::vector<float> logits{0.5f, 0.1f, 0.4f, 0.3f};
    TokenSampler first({.temperature = 5, .top_k = 2, .seed = 3});
    TokenSampler again({.temperature = 5, .top_k = 2, .seed = 3});
    TokenSampler other({.temperature = 5, .top_k = 2, .seed = 4});
    int differences = 0;
    std::array<int, 4> seen{};
    for (int i = 0; i < 200; ++i) {
        const auto token = first.draw(logits);
        ++seen[static_cast<std::size_t>(token)];
        CHECK(again.draw(logits) == token);
        differences += other.draw(logits) == token ? 0 : 1;
    }
    CHECK(seen[0] > 50);
    CHECK(seen[2] > 50);
    CHECK(seen[1] + seen[3] == 0);
    CHECK(differences > 50);
    CHECK(TokenSampler({.temperature = 9, .top_k = 1}).draw(logits) == 0);
    CHECK_NOTHROW(TokenSampler({.top_k = 1000}).draw(logits));
}

TEST_CASE("token_sampler: what cannot be drawn from is refused") {
    TokenSampler sampler({});
    const float infinity = std::numeric_limits<float>::infinity();
    CHECK_THROWS_WITH(sampler.draw(std::array{0.0f, infinity}), Contains("token 1"));
    CHECK_THROWS_AS(sampler.draw(std::array{std::nanf("")}), std::runtime_error);
    CHECK_THROWS_AS(sampler.draw({}), std::runtime_error);
    CHECK_THROWS_WITH(TokenSampler({.temperature = -1}), Contains("-1"));
    CHECK_THROWS_AS(TokenSampler({.temperature = std::nan("")}), std::invalid_argument);
}

}  // namespace spillway::engine
