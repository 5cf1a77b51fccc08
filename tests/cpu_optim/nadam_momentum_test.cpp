// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/detail/nadam_momentum.h"

#include <algorithm>
#include <cmath>
#include <variant>

#include <catch2/catch.hpp>

#include "cpu_optim/elementwise.h"

namespace spillway::cpu_optim {
namespace {

long double momentum_by_definition(double beta1, double momentum_decay, std::uint64_t step) {
    const auto exponent = static_cast<long double>(step) * momentum_decay;
    return beta1 * (1 - 0.5L * std::pow(0.96L, exponent));
}

AdamCoefficients nadam(std::uint64_t step) {
    const AdamHyperParameters hyper{.learning_rate = 2e-3, .nesterov = Nesterov::on};
    return std::get<AdamCoefficients>(make_coefficients(hyper, step, 1.0).rule);
}

}  // namespace

TEST_CASE("NAdam's product of momenta is the running product, at every step of ten thousand") {
    for (const double beta1 : {0.0, 0.5, 0.9, 0.999, 0.9999999})
        for (const double decay : {0.0, 1e-9, 1e-4, 4e-3, 0.3, 7.0, 1000.0}) {
            CAPTURE(beta1, decay);
            long double product = 1;
            double worst_momentum = 0;
            double worst_product = 0;
            for (std::uint64_t step = 1; step <= 10'000; ++step) {
                const auto momentum = momentum_by_definition(beta1, decay, step);
                product *= momentum;
                const auto off = [](double found, long double expected) {
                    return static_cast<double>(std::abs(found - expected));
                };
                worst_momentum = std::max(
                    worst_momentum, off(detail::nadam_momentum(beta1, decay, step), momentum));
                worst_product =
                    std::max(worst_product,
                             off(detail::nadam_momentum_product(beta1, decay, step), product));
            }
            CHECK(worst_momentum < 1e-15);
            CHECK(worst_product < 1e-12);
        }
}

TEST_CASE("NAdam's product goes to 0 without a fault after any number of steps") {
    for (const std::uint64_t step : {1'000'000UL, 10'000'000'000UL, ~0UL}) {
        CHECK(detail::nadam_momentum_product(0.9, 4e-3, step) == 0);
        CHECK(detail::nadam_momentum(0.9, 4e-3, step) == Approx(0.9).epsilon(1e-15));
    }
}

TEST_CASE("NAdam's steps are those of its formula at the first two steps") {
    const double mu1 = 0.9 * (1 - 0.5 * std::pow(0.96, 0.004));
    const double mu2 = 0.9 * (1 - 0.5 * std::pow(0.96, 0.008));
    const double mu3 = 0.9 * (1 - 0.5 * std::pow(0.96, 0.012));
    CHECK(nadam(1).gradient_step == Approx(2e-3).epsilon(1e-7));  // (1 - mu1) / (1 - mu1)
    CHECK(nadam(1).step_size == Approx(2e-3 * mu2 / (1 - mu1 * mu2)).epsilon(1e-7));
    CHECK(nadam(2).gradient_step == Approx(2e-3 * (1 - mu2) / (1 - mu1 * mu2)).epsilon(1e-7));
    CHECK(nadam(2).step_size == Approx(2e-3 * mu3 / (1 - mu1 * mu2 * mu3)).epsilon(1e-7));
}

}  // namespace spillway::cpu_optim
