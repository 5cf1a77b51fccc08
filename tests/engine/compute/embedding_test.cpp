// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/compute/embedding.h"

#include <cmath>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/engine/compute/compute_support.h"

namespace spillway::engine {
namespace {

using testing::Floats;
using testing::random_floats;

constexpr std::size_t features = 70;
constexpr TokenRows rows{2, 3};
/// Two sequences of three tokens and a last target; id 1 occurs three times, 4 never as an input.
const std::vector<std::int32_t> ids{1, 0, 1, 4, 3, 1, 2, 0};

}  // namespace

TEST_CASE("embedding: rows are the sum of token and position") {
    ComputePool pool(2, cpu_optim::best_isa());
    const Floats tokens = random_floats(5 * features, 1);
    const Floats positions = random_floats(4 * features, 2);
    Floats output(rows.tokens() * features);
    embed(pool, rows, {ids.data(), 4}, features, tokens.data(), positions.data(), output.data());
    for (std::size_t row = 0; row < 6; ++row)
        for (std::size_t i = 0; i < features; ++i) {
            const auto id = static_cast<std::size_t>(ids[row / 3 * 4 + row % 3]);
            CHECK(output[row * features + i] ==
                  tokens[id * features + i] + positions[row % 3 * features + i]);
        }
}

TEST_CASE("embedding: gradients are summed in token order, 0 where nothing occurs") {
    ComputePool pool(2, cpu_optim::best_isa());
    const Floats g = random_floats(rows.tokens() * features, 3);
    Floats tokens(5 * features, NAN);
    Floats positions(4 * features, NAN);
    token_table_gradient(pool, rows, {ids.data(), 4}, features, 5, g.data(), Contribution::first,
                         tokens.data());
    position_table_gradient(pool, rows, features, 4, g.data(), Contribution::first,
                            positions.data());
    const auto row = [&](std::size_t r, std::size_t i) { return g[r * features + i]; };
    for (std::size_t i = 0; i < features; ++i) {
        CHECK(tokens[i] == row(1, i));
        CHECK(tokens[features + i] == (row(0, i) + row(2, i)) + row(4, i));
        CHECK(tokens[2 * features + i] == row(5, i));
        CHECK(tokens[3 * features + i] == row(3, i));
        CHECK(tokens[4 * features + i] == 0.0f);
        for (std::size_t position = 0; position < 3; ++position)
            CHECK(positions[position * features + i] == row(position, i) + row(position + 3, i));
        CHECK(positions[3 * features + i] == 0.0f);
    }
}

TEST_CASE("embedding: gradients of one sequence behind another's are those of both") {
    ComputePool pool(2, cpu_optim::best_isa());
    const Floats g = random_floats(rows.tokens() * features, 3);
    Floats tokens(5 * features), positions(4 * features);
    token_table_gradient(pool, rows, {ids.data(), 4}, features, 5, g.data(), Contribution::first,
                         tokens.data());
    position_table_gradient(pool, rows, features, 4, g.data(), Contribution::first,
                            positions.data());
    Floats tokens_in_parts(5 * features, NAN), positions_in_parts(4 * features, NAN);
    for (std::size_t sequence = 0; sequence < 2; ++sequence) {
        const auto contribution = sequence == 0 ? Contribution::first : Contribution::further;
        const float* const own = g.data() + sequence * 3 * features;
        token_table_gradient(pool, {1, 3}, {ids.data() + sequence * 4, 4}, features, 5, own,
                             contribution, tokens_in_parts.data());
        position_table_gradient(pool, {1, 3}, features, 4, own, contribution,
                                positions_in_parts.data());
    }
    CHECK(tokens_in_parts == tokens);
    CHECK(positions_in_parts == positions);
}

}  // namespace spillway::engine
