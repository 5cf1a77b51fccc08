// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/compute/product.h"

#include <cmath>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/engine/compute/compute_support.h"

namespace spillway::engine {
namespace {

using testing::Floats;
using testing::random_floats;
using testing::same_bits;

struct Case {
    TokenRows rows;
    WeightShape shape;
};

/// Ragged in every direction; longer than one token block, result block, gradient block and sum.
const std::vector<Case> cases{{{2, 5}, {3, 7}},
                              {{1, 1}, {1, 1}},
                              {{3, 257}, {300, 410}},
                              {{1, 300}, {20, 4100}},
                              {{1, 20}, {4111, 33}}};

/// sum of a[i * a_step] * b[i * b_step] in double, and of the magnitudes.
struct Sum {
    double value = 0, magnitude = 0;
};
Sum sum_of(const float* a, std::size_t a_step, const float* b, std::size_t b_step,
           std::size_t count) {
    Sum sum;
    for (std::size_t i = 0; i < count; ++i) {
        const double term = static_cast<double>(a[i * a_step]) * static_cast<double>(b[i * b_step]);
        sum.value += term;
        sum.magnitude += std::abs(term);
    }
    return sum;
}

/// Rounding of a blocked sum grows with the logarithm of its length; 16 units of the magnitudes is
/// ample.
bool near(float found, const Sum& exact) {
    return std::abs(static_cast<double>(found) - exact.value) <= 16 * 6e-8 * exact.magnitude;
}

}  // namespace

TEST_CASE("product: all three products follow a double-precision sum on ragged shapes") {
    ComputePool pool(2, cpu_optim::best_isa());
    for (const auto& [rows, shape] : cases) {
        const std::size_t tokens = rows.tokens();
        const std::size_t n = shape.outputs;
        const std::size_t k = shape.inputs;
        INFO(tokens << " tokens, " << n << " x " << k);
        const Floats input = random_floats(tokens * k, 1);
        const Floats weight = random_floats(n * k, 2);
        const Floats gradient = random_floats(tokens * n, 3);
        Floats result(tokens * n, NAN);
        Floats input_gradient(tokens * k, NAN);
        Floats weight_gradient(n * k, NAN);
        product(pool, rows, input.data(), weight.data(), shape, result.data());
        product_input_gradient(pool, rows, gradient.data(), weight.data(), shape,
                               input_gradient.data());
        product_weight_gradient(pool, rows, gradient.data(), input.data(), shape,
                                Contribution::first, weight_gradient.data());
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < result.size(); i += 1 + result.size() / 997)
            wrong += !near(result[i], sum_of(&input[i / n * k], 1, &weight[i % n * k], 1, k));
        for (std::size_t i = 0; i < input_gradient.size(); i += 1 + input_gradient.size() / 997)
            wrong +=
                !near(input_gradient[i], sum_of(&gradient[i / k * n], 1, &weight[i % k], k, n));
        for (std::size_t i = 0; i < weight_gradient.size(); i += 1 + weight_gradient.size() / 997)
            wrong +=
                !near(weight_gradient[i], sum_of(&gradient[i / k], n, &input[i % k], k, tokens));
        CHECK(wrong == 0);
    }
}

TEST_CASE("product: a weight gradient added up over micro-batches has the bits of one batch") {
    ComputePool pool(2, cpu_optim::best_isa());
    const WeightShape shape{70, 50};
    const std::size_t sequence_tokens = 300;
    const Floats gradient = random_floats(4 * sequence_tokens * shape.outputs, 1);
    const Floats input = random_floats(4 * sequence_tokens * shape.inputs, 2);
    Floats whole(shape.outputs * shape.inputs, NAN);
    product_weight_gradient(pool, {4, sequence_tokens}, gradient.data(), input.data(), shape,
                            Contribution::first, whole.data());
    for (const std::size_t sequences : {1u, 2u}) {
        Floats pieces(whole.size(), NAN);
        for (std::size_t first = 0; first < 4; first += sequences)
            product_weight_gradient(pool, {sequences, sequence_tokens},
                                    &gradient[first * sequence_tokens * shape.outputs],
                                    &input[first * sequence_tokens * shape.inputs], shape,
                                    first == 0 ? Contribution::first : Contribution::further,
                                    pieces.data());
        CHECK(same_bits(pieces, whole));
    }
}

TEST_CASE("product: a sequence's rows do not depend on the sequences beside it") {
    ComputePool pool(2, cpu_optim::best_isa());
    const WeightShape shape{300, 96};
    const Floats input = random_floats(3 * 270 * shape.inputs, 1);
    const Floats weight = random_floats(shape.outputs * shape.inputs, 2);
    Floats together(3 * 270 * shape.outputs);
    Floats alone(270 * shape.outputs);
    product(pool, {3, 270}, input.data(), weight.data(), shape, together.data());
    product(pool, {1, 270}, &input[270 * shape.inputs], weight.data(), shape, alone.data());
    const auto middle = together.begin() + static_cast<std::ptrdiff_t>(alone.size());
    CHECK(same_bits({middle, middle + static_cast<std::ptrdiff_t>(alone.size())}, alone));
}

TEST_CASE("product: the epilogue sees every element of the result once, complete") {
    ComputePool pool(2, cpu_optim::best_isa());
    const WeightShape shape{530, 40};
    const TokenRows rows{2, 300};
    const Floats input = random_floats(rows.tokens() * shape.inputs, 1);
    const Floats weight = random_floats(shape.outputs * shape.inputs, 2);
    Floats plain(rows.tokens() * shape.outputs);
    Floats negated(plain.size());
    product(pool, rows, input.data(), weight.data(), shape, plain.data());
    product(pool, rows, input.data(), weight.data(), shape, negated.data(),
            [&](const ResultBlock& block) {
                for (std::size_t r = block.first_row; r < block.first_row + block.rows; ++r)
                    for (std::size_t c = 0; c < block.columns; ++c)
                        negated[r * shape.outputs + block.first_column + c] *= -1.0f;
            });
    for (float& value : negated)
        value = -value;
    CHECK(same_bits(negated, plain));
}

}  // namespace spillway::engine
