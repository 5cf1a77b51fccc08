// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <string>
#include <vector>

#include "cpu_optim/elementwise.h"
#include "tests/cpu_optim/sample_values.h"

namespace spillway::cpu_optim::testing {

struct NamedRule {
    std::string name;
    HyperParameters hyper;
};

/// Every combination of planes of state and every switch of every rule, on and off.
inline std::vector<NamedRule> every_rule() {
    constexpr auto l2 = WeightDecay::l2;
    constexpr auto maximise = Objective::maximise;
    return {
        {"AdamW", AdamHyperParameters{}},
        {"AdamW, strong decay",
         AdamHyperParameters{.learning_rate = 3e-3, .beta2 = 0.95, .weight_decay = 0.1}},
        {"AdamW, no decay", AdamHyperParameters{.weight_decay = 0}},
        {"AdamW, amsgrad, maximise",
         AdamHyperParameters{.weight_decay = 0.1, .amsgrad = Amsgrad::on, .objective = maximise}},
        {"Adam, l2", AdamHyperParameters{.weight_decay = 0.1, .decay = l2}},
        {"Adam, no l2", AdamHyperParameters{.weight_decay = 0, .decay = l2}},
        {"Adam, l2, amsgrad",
         AdamHyperParameters{
             .beta2 = 0.9, .weight_decay = 0.02, .decay = l2, .amsgrad = Amsgrad::on}},
        {"NAdam", AdamHyperParameters{.weight_decay = 0, .decay = l2, .nesterov = Nesterov::on}},
        {"NAdam, l2, maximise", AdamHyperParameters{.learning_rate = 2e-3,
                                                    .weight_decay = 0.1,
                                                    .decay = l2,
                                                    .objective = maximise,
                                                    .nesterov = Nesterov::on,
                                                    .momentum_decay = 0.3}},
        {"NAdam, decoupled decay", AdamHyperParameters{.beta1 = 0.95,
                                                       .beta2 = 0.99,
                                                       .weight_decay = 0.1,
                                                       .nesterov = Nesterov::on,
                                                       .momentum_decay = 0}},
        {"SGD", SgdHyperParameters{}},
        {"SGD, l2, maximise", SgdHyperParameters{.weight_decay = 0.1, .objective = maximise}},
        {"SGD, momentum", SgdHyperParameters{.momentum = 0.9}},
        {"SGD, dampening, l2",
         SgdHyperParameters{.momentum = 0.8, .dampening = 0.3, .weight_decay = 0.01}},
        {"SGD, nesterov, l2, maximise", SgdHyperParameters{.momentum = 0.9,
                                                           .weight_decay = 0.05,
                                                           .nesterov = Nesterov::on,
                                                           .objective = maximise}},
        {"Adagrad", AdagradHyperParameters{}},
        {"Adagrad, all on", AdagradHyperParameters{.learning_rate_decay = 0.1,
                                                   .weight_decay = 0.1,
                                                   .initial_accumulator_value = 0.1,
                                                   .epsilon = 1e-2,
                                                   .objective = maximise}},
        {"Lion", LionHyperParameters{}},
        {"Lion, decay, maximise",
         LionHyperParameters{.learning_rate = 1e-3, .weight_decay = 0.1, .objective = maximise}},
        {"Lion, the moment is the gradient", LionHyperParameters{.beta2 = 0}},
        {"RMSprop", RmspropHyperParameters{}},
        {"RMSprop, momentum, maximise",
         RmspropHyperParameters{.momentum = 0.9, .objective = maximise}},
        {"RMSprop, centred, l2",
         RmspropHyperParameters{.weight_decay = 0.1, .centred = Centred::on}},
        {"RMSprop, all on", RmspropHyperParameters{.learning_rate = 1e-3,
                                                   .alpha = 0.9,
                                                   .weight_decay = 0.01,
                                                   .momentum = 0.5,
                                                   .centred = Centred::on}},
    };
}

/// Set `n` of a sweep through the ranges check() allows, all rules and switches among them.
inline HyperParameters sample_rule(std::uint64_t n) {
    const auto from = [n](std::uint64_t stream, double smallest, double largest) {
        return smallest * std::pow(largest / smallest, sample_unit(stream, n));
    };
    const auto coin = [n](std::uint64_t stream) { return sample_bits(stream, n) % 2 == 0; };
    const double rate = from(31, 1e-6, 1.0);
    const double decay = coin(32) ? 0 : from(33, 1e-4, 1.0);
    const double keep = coin(34) ? 0 : 1 - from(35, 1e-6, 1.0);
    const double keep_squares = coin(36) ? 0.999 : 1 - from(37, 1e-6, 1.0);
    const double epsilon = coin(38) ? 1e-8 : from(39, 1e-12, 1.0);
    const auto objective = coin(40) ? Objective::minimise : Objective::maximise;
    switch (n % 5) {
        case 0: {
            const bool is_nesterov = coin(45);
            return AdamHyperParameters{rate,
                                       keep,
                                       keep_squares,
                                       epsilon,
                                       decay,
                                       coin(41) ? WeightDecay::l2 : WeightDecay::decoupled,
                                       !is_nesterov && coin(42) ? Amsgrad::on : Amsgrad::off,
                                       objective,
                                       is_nesterov ? Nesterov::on : Nesterov::off,
                                       from(46, 1e-6, 10.0)};
        }
        case 1: {
            const bool is_nesterov = keep != 0 && coin(41);
            return SgdHyperParameters{rate,
                                      keep,
                                      is_nesterov ? 0 : sample_unit(43, n),
                                      decay,
                                      is_nesterov ? Nesterov::on : Nesterov::off,
                                      objective};
        }
        case 2:
            return AdagradHyperParameters{rate,    coin(41) ? 0 : sample_unit(43, n),
                                          decay,   coin(42) ? 0 : sample_unit(44, n),
                                          epsilon, objective};
        case 3:
            return LionHyperParameters{rate, keep, keep_squares, decay, objective};
        default:
            return RmspropHyperParameters{
                rate,     keep_squares, epsilon, decay, keep, coin(41) ? Centred::on : Centred::off,
                objective};
    }
}

}  // namespace spillway::cpu_optim::testing
