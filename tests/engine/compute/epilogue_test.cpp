// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/compute/epilogue.h"

#include <cmath>

#include <catch2/catch.hpp>

#include "tests/engine/compute/compute_support.h"

namespace spillway::engine {
namespace {

using testing::Floats;
using testing::random_floats;
using testing::same_everywhere;

constexpr std::size_t stride = 45;
constexpr std::size_t rows = 7;
/// Starts and ends off the edges of vectors.
constexpr ResultBlock block{2, 4, 3, 37};

bool inside(std::size_t i) {
    const std::size_t row = i / stride;
    const std::size_t column = i % stride;
    return row >= block.first_row && row < block.first_row + block.rows &&
           column >= block.first_column && column < block.first_column + block.columns;
}

double gelu(double x) {
    const double u = std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x);
    return x / (1.0 + std::exp(-2.0 * u));
}

double gelu_derivative(double x) {
    constexpr double h = 1e-5;
    return (gelu(x + h) - gelu(x - h)) / (2 * h);
}

}  // namespace

TEST_CASE("epilogue: bias and residual touch their block alone, on every instruction set alike") {
    const Floats bias = random_floats(stride, 1);
    const Floats residual = random_floats(rows * stride, 2);
    const Floats values = random_floats(rows * stride, 3);
    for (const auto isa : cpu_optim::supported_isas()) {
        Floats biased = values;
        add_bias(isa, block, stride, bias.data(), biased.data());
        Floats both = values;
        add_bias_and_residual(isa, block, stride, bias.data(), residual.data(), both.data());
        for (std::size_t i = 0; i < values.size(); ++i) {
            const float with_bias = values[i] + bias[i % stride];
            CHECK(biased[i] == (inside(i) ? with_bias : values[i]));
            CHECK(both[i] == (inside(i) ? with_bias + residual[i] : values[i]));
        }
    }
}

TEST_CASE("epilogue: GELU and its derivative are accurate from deep below to far above 0") {
    constexpr std::size_t count = 4001;
    const ResultBlock row{0, 1, 0, count};
    const Floats no_bias(count, 0.0f);
    Floats x(count);
    for (std::size_t i = 0; i < count; ++i)
        x[i] = static_cast<float>(static_cast<double>(i) - 2000.0) * 0.006f;
    Floats values = x;
    Floats activated(count);
    add_bias_and_gelu(cpu_optim::best_isa(), row, count, no_bias.data(), values.data(),
                      activated.data());
    Floats gradient(count, 2.0f);
    Floats again(count);
    gelu_backward(cpu_optim::best_isa(), row, count, x.data(), gradient.data(), again.data());
    CHECK(testing::same_bits(values, x));
    CHECK(testing::same_bits(again, activated));
    double worst_relative = 0;
    double worst_derivative = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const auto at = static_cast<double>(x[i]);
        if (at > -5.0)
            worst_relative = std::max(worst_relative, testing::ulps(activated[i], gelu(at)));
        CHECK(std::abs(static_cast<double>(activated[i]) - gelu(at)) < 1e-6);
        worst_derivative =
            std::max(worst_derivative,
                     std::abs(static_cast<double>(gradient[i]) / 2.0 - gelu_derivative(at)));
    }
    // The rounding of 2u is magnified by |2u| < 17 in the exponential, at most.
    CHECK(worst_relative < 24);
    CHECK(worst_derivative < 5e-7);
}

TEST_CASE("epilogue: GELU of huge values is x or 0, of NaN NaN") {
    const Floats x{1e4f, -1e4f, 1e30f, NAN, 0.0f};
    const Floats no_bias(x.size(), 0.0f);
    for (const auto isa : cpu_optim::supported_isas()) {
        Floats values = x;
        Floats activated(x.size());
        const ResultBlock row{0, 1, 0, x.size()};
        add_bias_and_gelu(isa, row, x.size(), no_bias.data(), values.data(), activated.data());
        CHECK(activated[0] == 1e4f);
        CHECK(std::abs(activated[1]) < 1e-30f);
        CHECK(activated[2] == 1e30f);
        CHECK(std::isnan(activated[3]));
        CHECK(activated[4] == 0.0f);
        Floats gradient(x.size(), 1.0f);
        gelu_backward(isa, row, x.size(), x.data(), gradient.data(), activated.data());
        CHECK(gradient[0] == 1.0f);
        CHECK(std::abs(gradient[1]) < 1e-20f);
        CHECK(std::isnan(gradient[3]));
        CHECK(gradient[4] == 0.5f);
    }
}

TEST_CASE("epilogue: GELU has the same bits on every instruction set") {
    const Floats x = random_floats(rows * stride, 1, 4.0f);
    const Floats bias = random_floats(stride, 2);
    CHECK(same_everywhere([&](ComputePool& pool) {
        Floats values = x;
        Floats activated(x.size(), 0.0f);
        add_bias_and_gelu(pool.isa(), block, stride, bias.data(), values.data(), activated.data());
        values.insert(values.end(), activated.begin(), activated.end());
        Floats gradient = x;
        gelu_backward(pool.isa(), block, stride, x.data(), gradient.data(), activated.data());
        values.insert(values.end(), gradient.begin(), gradient.end());
        values.insert(values.end(), activated.begin(), activated.end());
        return values;
    }));
}

}  // namespace spillway::engine
