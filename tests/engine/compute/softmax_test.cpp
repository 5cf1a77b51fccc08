// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/compute/softmax.h"

#include <cmath>
#include <limits>

#include <catch2/catch.hpp>

#include "tests/engine/compute/compute_support.h"

namespace spillway::engine {
namespace {

using testing::Floats;
using testing::random_floats;

constexpr float infinity = std::numeric_limits<float>::infinity();

double exact_loss(const Floats& logits, std::size_t target) {
    double largest = -std::numeric_limits<double>::infinity();
    for (const float logit : logits)
        largest = std::max(largest, static_cast<double>(logit));
    double sum = 0;
    for (const float logit : logits)
        sum += std::exp(static_cast<double>(logit) - largest);
    return largest + std::log(sum) - static_cast<double>(logits[target]);
}

}  // namespace

TEST_CASE("softmax: the exponential is within two units in the last place") {
    for (const auto isa : cpu_optim::supported_isas()) {
        constexpr std::size_t count = 20011;
        Floats x(count);
        for (std::size_t i = 0; i < count; ++i)
            x[i] = -86.9f + static_cast<float>(i) * (173.0f / count);
        Floats powers = x;
        scores_to_probabilities(isa, {powers.data(), count, count, 1.0f}, {0.0f, 1.0f});
        double worst = 0;
        for (std::size_t i = 0; i < count; ++i)
            worst = std::max(worst, testing::ulps(powers[i], std::exp(static_cast<double>(x[i]))));
        INFO(cpu_optim::isa_name(isa));
        CHECK(worst < 2.0);
        Floats edges{0.0f, -87.5f, -1000.0f, -infinity, NAN};
        scores_to_probabilities(isa, {edges.data(), 5, 5, 1.0f}, {0.0f, 1.0f});
        CHECK(edges[0] == 1.0f);
        CHECK(edges[1] == 0.0f);
        CHECK(edges[2] == 0.0f);
        CHECK(edges[3] == 0.0f);
        CHECK(std::isnan(edges[4]));
    }
}

TEST_CASE("softmax: probabilities of the visible scores sum to 1, of the others are 0") {
    for (const std::size_t visible : {1u, 2u, 15u, 16u, 17u, 50u}) {
        Floats scores = random_floats(50, 3, 5.0f);
        const ScoreRow row{scores.data(), visible, 50, 0.35f};
        const auto statistics = softmax_statistics(cpu_optim::best_isa(), row);
        scores_to_probabilities(cpu_optim::best_isa(), row, statistics);
        double sum = 0;
        for (std::size_t i = 0; i < visible; ++i)
            sum += static_cast<double>(scores[i]);
        CHECK(sum == Approx(1.0).epsilon(1e-6));
        for (std::size_t i = visible; i < 50; ++i)
            CHECK(scores[i] == 0.0f);
    }
}

TEST_CASE("softmax: cross-entropy and its gradient follow double precision, at huge logits too") {
    for (const float size : {1.0f, 30.0f, 1e4f, 1e30f})
        for (const std::size_t count : {1u, 17u, 300u}) {
            const Floats logits = random_floats(count, 5, size);
            const std::size_t target = count / 2;
            Floats gradient = logits;
            const double loss = cross_entropy(cpu_optim::best_isa(), gradient.data(), count, target,
                                              LogitsGradient::replace_logits, 0.5f);
            Floats untouched = logits;
            CHECK(cross_entropy(cpu_optim::best_isa(), untouched.data(), count, target,
                                LogitsGradient::none, 0.0f) == loss);
            CHECK(testing::same_bits(untouched, logits));
            const double exact = exact_loss(logits, target);
            CHECK(loss == Approx(exact).epsilon(1e-6).margin(1e-6));
            double sum = 0;
            for (const float value : gradient)
                sum += static_cast<double>(value);
            CHECK(std::abs(sum) < 1e-6);
            const double p = std::exp(-exact);
            CHECK(static_cast<double>(gradient[target]) ==
                  Approx(0.5 * (p - 1.0)).epsilon(1e-5).margin(1e-7));
        }
}

TEST_CASE("softmax: a logit that is NaN or infinite makes the loss NaN") {
    for (const auto isa : cpu_optim::supported_isas())
        for (const float bad : {NAN, infinity})
            for (const std::size_t at : {0u, 7u, 33u}) {
                Floats logits = random_floats(34, 5);
                logits[at] = bad;
                CHECK(std::isnan(cross_entropy(isa, logits.data(), 34, 3,
                                               LogitsGradient::replace_logits, 1.0f)));
            }
}

TEST_CASE("softmax: every kernel has the same bits on every instruction set") {
    const Floats scores = random_floats(3 * 77, 9, 4.0f);
    CHECK(testing::same_everywhere([&](ComputePool& pool) {
        Floats all = scores;
        const ScoreRow row{all.data(), 61, 77, 0.125f};
        const auto statistics = softmax_statistics(pool.isa(), row);
        scores_to_probabilities(pool.isa(), row, statistics);
        const float projection = dot(pool.isa(), all.data(), all.data() + 77, 61);
        softmax_backward(pool.isa(), {all.data() + 77, 61, 77, 0.125f}, all.data(), projection);
        const double loss = cross_entropy(pool.isa(), all.data() + 154, 77, 8,
                                          LogitsGradient::replace_logits, 0.01f);
        all.insert(all.end(), {statistics.largest, statistics.inverse_sum, projection,
                               static_cast<float>(loss)});
        return all;
    }));
}

}  // namespace spillway::engine
