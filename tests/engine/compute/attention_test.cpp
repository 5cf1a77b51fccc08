// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/compute/attention.h"

#include <cmath>

#include <catch2/catch.hpp>

#include "tests/engine/compute/compute_support.h"

namespace spillway::engine {
namespace {

using testing::Floats;
using testing::random_floats;

struct Passes {
    Floats output, gradient;
};

Passes run(ComputePool& pool, const AttentionShape& shape, const Floats& qkv,
           const Floats& output_gradient) {
    const std::size_t tokens = shape.rows.tokens();
    Passes passes{Floats(tokens * shape.hidden(), NAN), Floats(qkv.size(), NAN)};
    Floats scratch(attention_scratch_elements(shape, pool.threads()), NAN);
    std::vector<SoftmaxStatistics> statistics(tokens * shape.heads);
    attention(pool, shape, qkv.data(), scratch.data(), passes.output.data(), statistics.data());
    attention_backward(pool, shape, qkv.data(), passes.output.data(), statistics.data(),
                       output_gradient.data(), scratch.data(), passes.gradient.data());
    return passes;
}

/// sum(output * weights) of one sequence in double.
double objective(const AttentionShape& shape, const std::vector<double>& qkv,
                 const Floats& weights) {
    const std::size_t hidden = shape.hidden();
    double total = 0;
    for (std::size_t head = 0; head < shape.heads; ++head)
        for (std::size_t q = 0; q < shape.rows.sequence_tokens; ++q) {
            std::vector<double> scores;
            for (std::size_t k = 0; k <= q; ++k) {
                double score = 0;
                for (std::size_t i = head * shape.head_size; i < (head + 1) * shape.head_size; ++i)
                    score += qkv[q * 3 * hidden + i] * qkv[k * 3 * hidden + hidden + i];
                scores.push_back(score / std::sqrt(static_cast<double>(shape.head_size)));
            }
            double largest = scores[0];
            for (const double s : scores)
                largest = std::max(largest, s);
            double sum = 0;
            double value = 0;
            for (std::size_t k = 0; k <= q; ++k) {
                const double p = std::exp(scores[k] - largest);
                sum += p;
                for (std::size_t i = head * shape.head_size; i < (head + 1) * shape.head_size; ++i)
                    value += p * qkv[k * 3 * hidden + 2 * hidden + i] *
                             static_cast<double>(weights[q * hidden + i]);
            }
            total += value / sum;
        }
    return total;
}

}  // namespace

TEST_CASE("attention: gradients of queries, keys and values are those of finite differences") {
    const AttentionShape shape{{1, 70}, 2, 5};
    const Floats qkv = random_floats(70 * 3 * shape.hidden(), 1);
    const Floats weights = random_floats(70 * shape.hidden(), 2);
    ComputePool pool(2, cpu_optim::best_isa());
    const Passes passes = run(pool, shape, qkv, weights);
    std::vector<double> x(qkv.begin(), qkv.end());
    double output = 0;
    for (std::size_t i = 0; i < weights.size(); ++i)
        output += static_cast<double>(passes.output[i]) * static_cast<double>(weights[i]);
    CHECK(output == Approx(objective(shape, x, weights)).margin(1e-4));
    for (std::size_t i = 0; i < x.size(); i += 13) {
        constexpr double step = 1e-5;
        const double kept = x[i];
        x[i] = kept + step;
        const double above = objective(shape, x, weights);
        x[i] = kept - step;
        const double slope = (above - objective(shape, x, weights)) / (2 * step);
        x[i] = kept;
        CHECK(static_cast<double>(passes.gradient[i]) == Approx(slope).epsilon(1e-4).margin(1e-5));
    }
}

TEST_CASE("attention: no token sees what comes after it") {
    const AttentionShape shape{{1, 130}, 1, 8};
    Floats qkv = random_floats(130 * 24, 1);
    const Floats gradient = random_floats(130 * 8, 2);
    ComputePool pool(1, cpu_optim::best_isa());
    const Floats before = run(pool, shape, qkv, gradient).output;
    for (std::size_t i = 100 * 24; i < qkv.size(); ++i)
        qkv[i] = -3.0f * qkv[i];
    const Floats after = run(pool, shape, qkv, gradient).output;
    CHECK(testing::same_bits({before.begin(), before.begin() + 800},
                             {after.begin(), after.begin() + 800}));
    CHECK_FALSE(testing::same_bits(before, after));
}

TEST_CASE("attention: scores of thousands neither overflow nor lose the winner") {
    const AttentionShape shape{{1, 80}, 1, 4};
    Floats qkv = random_floats(80 * 12, 1);
    for (std::size_t token = 0; token < 80; ++token)
        for (std::size_t i = 0; i < 8; ++i)
            qkv[token * 12 + i] *= 100.0f;
    ComputePool pool(1, cpu_optim::best_isa());
    const Passes passes = run(pool, shape, qkv, random_floats(80 * 4, 2));
    for (const float value : passes.output)
        CHECK(std::isfinite(value));
    for (const float value : passes.gradient)
        CHECK(std::isfinite(value));
    // The first token sees itself alone.
    for (std::size_t i = 0; i < 4; ++i)
        CHECK(passes.output[i] == qkv[8 + i]);
}

TEST_CASE("attention: same bits on every instruction set and number of threads") {
    const AttentionShape shape{{3, 150}, 3, 8};
    const Floats qkv = random_floats(450 * 72, 1);
    const Floats gradient = random_floats(450 * 24, 2);
    CHECK(testing::same_everywhere([&](ComputePool& pool) {
        Passes passes = run(pool, shape, qkv, gradient);
        passes.output.insert(passes.output.end(), passes.gradient.begin(), passes.gradient.end());
        return passes.output;
    }));
}

TEST_CASE("attention: scratch grows with the sequence, not with its square") {
    const auto scratch = [](std::size_t tokens) {
        return attention_scratch_elements({{1, tokens}, 4, 64}, 1);
    };
    CHECK(scratch(8192) == 8 * scratch(1024));
}

}  // namespace spillway::engine
