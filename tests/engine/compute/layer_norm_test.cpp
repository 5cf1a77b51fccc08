// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/compute/layer_norm.h"

#include <cmath>

#include <catch2/catch.hpp>

#include "tests/engine/compute/compute_support.h"

namespace spillway::engine {
namespace {

using testing::Floats;
using testing::random_floats;
using testing::same_bits;

struct Norm {
    std::size_t tokens, features;
    Floats x, weight, bias, gradient;

    Norm(std::size_t tokens_, std::size_t features_, float offset)
        : tokens(tokens_),
          features(features_),
          x(random_floats(tokens * features, 1)),
          weight(random_floats(features, 2)),
          bias(random_floats(features, 3)),
          gradient(random_floats(tokens * features, 4)) {
        for (float& value : x)
            value += offset;
    }

    [[nodiscard]] std::vector<double> output(const std::vector<double>& input) const {
        std::vector<double> y(input.size());
        for (std::size_t t = 0; t < tokens; ++t) {
            const double* row = &input[t * features];
            double mean = 0;
            for (std::size_t i = 0; i < features; ++i)
                mean += row[i] / static_cast<double>(features);
            double variance = 0;
            for (std::size_t i = 0; i < features; ++i)
                variance += (row[i] - mean) * (row[i] - mean) / static_cast<double>(features);
            for (std::size_t i = 0; i < features; ++i)
                y[t * features + i] =
                    (row[i] - mean) / std::sqrt(variance + 1e-5) * static_cast<double>(weight[i]) +
                    static_cast<double>(bias[i]);
        }
        return y;
    }

    /// What `gradient` says about a change of the output.
    [[nodiscard]] double objective(const std::vector<double>& input) const {
        const auto y = output(input);
        double sum = 0;
        for (std::size_t i = 0; i < y.size(); ++i)
            sum += y[i] * static_cast<double>(gradient[i]);
        return sum;
    }
};

}  // namespace

TEST_CASE("layer_norm: output follows double precision, far from 0 too") {
    for (const std::size_t features : {1u, 15u, 16u, 17u, 768u})
        for (const float offset : {0.0f, 100.0f}) {
            INFO(features << " features around " << offset);
            const Norm norm(9, features, offset);
            ComputePool pool(2, cpu_optim::best_isa());
            Floats y(norm.x.size());
            std::vector<RowStatistics> statistics(norm.tokens);
            layer_norm(pool, norm.tokens, features, norm.x.data(), norm.weight.data(),
                       norm.bias.data(), y.data(), statistics.data());
            const auto exact = norm.output({norm.x.begin(), norm.x.end()});
            // The mean carries the rounding of values as large as `offset`.
            const double tolerance = 8e-7 * (1.0 + static_cast<double>(offset)) * 8.0;
            for (std::size_t i = 0; i < y.size(); ++i)
                CHECK(std::abs(static_cast<double>(y[i]) - exact[i]) < tolerance);
        }
}

TEST_CASE("layer_norm: the input's gradient is that of finite differences, replaced or added") {
    const Norm norm(3, 21, 0.5f);
    ComputePool pool(2, cpu_optim::best_isa());
    Floats y(norm.x.size());
    std::vector<RowStatistics> statistics(norm.tokens);
    layer_norm(pool, norm.tokens, norm.features, norm.x.data(), norm.weight.data(),
               norm.bias.data(), y.data(), statistics.data());
    Floats replaced = norm.gradient;  // in place
    layer_norm_input_gradient(pool, norm.tokens, norm.features, norm.x.data(), statistics.data(),
                              norm.weight.data(), replaced.data(), InputGradient::replace,
                              replaced.data());
    const Floats residual = random_floats(norm.x.size(), 8);
    Floats added = residual;
    layer_norm_input_gradient(pool, norm.tokens, norm.features, norm.x.data(), statistics.data(),
                              norm.weight.data(), norm.gradient.data(),
                              InputGradient::add_to_residual, added.data());
    std::vector<double> x(norm.x.begin(), norm.x.end());
    for (std::size_t i = 0; i < x.size(); ++i) {
        constexpr double step = 1e-5;
        const double kept = x[i];
        x[i] = kept + step;
        const double above = norm.objective(x);
        x[i] = kept - step;
        const double slope = (above - norm.objective(x)) / (2 * step);
        x[i] = kept;
        CHECK(static_cast<double>(replaced[i]) == Approx(slope).epsilon(1e-5).margin(2e-6));
        CHECK(static_cast<double>(added[i]) ==
              Approx(static_cast<double>(residual[i]) + slope).epsilon(1e-5).margin(2e-6));
    }
}

TEST_CASE(
    "layer_norm: gradients of weight and bias are sums over tokens, alike for micro-batches") {
    const Norm norm(4 * 259, 70, 0.0f);
    ComputePool pool(2, cpu_optim::best_isa());
    Floats y(norm.x.size());
    std::vector<RowStatistics> statistics(norm.tokens);
    const Floats ones(70, 1.0f);
    const Floats zeros(70, 0.0f);
    layer_norm(pool, norm.tokens, 70, norm.x.data(), ones.data(), zeros.data(), y.data(),
               statistics.data());
    Floats whole(140, NAN);
    Floats pieces(140, NAN);
    Floats plain(70, NAN);
    layer_norm_parameter_gradients(pool, {4, 259}, 70, norm.x.data(), statistics.data(),
                                   norm.gradient.data(), Contribution::first, whole.data(),
                                   &whole[70]);
    bias_gradient(pool, {4, 259}, 70, norm.gradient.data(), Contribution::first, plain.data());
    for (std::size_t s = 0; s < 4; ++s)
        layer_norm_parameter_gradients(pool, {1, 259}, 70, &norm.x[s * 259 * 70],
                                       &statistics[s * 259], &norm.gradient[s * 259 * 70],
                                       s == 0 ? Contribution::first : Contribution::further,
                                       pieces.data(), &pieces[70]);
    CHECK(same_bits(pieces, whole));
    CHECK(same_bits(plain, {whole.begin() + 70, whole.end()}));
    for (std::size_t i = 0; i < 70; ++i) {
        double weight = 0;
        double bias = 0;
        for (std::size_t t = 0; t < norm.tokens; ++t) {
            const auto g = static_cast<double>(norm.gradient[t * 70 + i]);
            weight += g * static_cast<double>(y[t * 70 + i]);
            bias += g;
        }
        CHECK(static_cast<double>(whole[i]) == Approx(weight).margin(2e-4));
        CHECK(static_cast<double>(whole[70 + i]) == Approx(bias).margin(2e-4));
    }
}

TEST_CASE("layer_norm: same bits on every instruction set and number of threads") {
    const Norm norm(70, 45, 0.3f);
    CHECK(testing::same_everywhere([&](ComputePool& pool) {
        Floats all(norm.x.size() * 2 + 90);
        std::vector<RowStatistics> statistics(norm.tokens);
        layer_norm(pool, 70, 45, norm.x.data(), norm.weight.data(), norm.bias.data(), all.data(),
                   statistics.data());
        layer_norm_input_gradient(pool, 70, 45, norm.x.data(), statistics.data(),
                                  norm.weight.data(), norm.gradient.data(), InputGradient::replace,
                                  &all[norm.x.size()]);
        layer_norm_parameter_gradients(pool, {2, 35}, 45, norm.x.data(), statistics.data(),
                                       norm.gradient.data(), Contribution::first,
                                       &all[norm.x.size() * 2], &all[norm.x.size() * 2 + 45]);
        return all;
    }));
}

}  // namespace spillway::engine
