// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/elementwise_coefficients.h"

#include <cmath>

#include "cpu_optim/detail/hyper_checker.h"
#include "cpu_optim/detail/nadam_momentum.h"
#include "cpu_optim/detail/power.h"
#include "cpu_optim/elementwise.h"

namespace spillway::cpu_optim {
namespace {

using Checker = detail::HyperChecker;
using detail::power;
using detail::signed_scale;
using Step = detail::RuleStep;

void check_fields(const Checker& checker, const AdamHyperParameters& hyper) {
    checker.not_negative("learning_rate", hyper.learning_rate);
    checker.not_negative("epsilon", hyper.epsilon);
    checker.not_negative("weight_decay", hyper.weight_decay);
    checker.beta("beta1", hyper.beta1);
    checker.beta("beta2", hyper.beta2);
    if (hyper.nesterov == Nesterov::off)
        return;
    checker.not_negative("momentum_decay", hyper.momentum_decay);
    if (hyper.amsgrad == Amsgrad::on)
        checker.refuse("amsgrad", 1, "must be 0: there is no NAdam with it");
}

void check_fields(const Checker& checker, const SgdHyperParameters& hyper) {
    checker.not_negative("learning_rate", hyper.learning_rate);
    checker.not_negative("momentum", hyper.momentum);
    checker.finite("dampening", hyper.dampening);
    checker.not_negative("weight_decay", hyper.weight_decay);
    if (hyper.nesterov == Nesterov::off)
        return;
    if (hyper.momentum == 0)
        checker.refuse("momentum", hyper.momentum, "must be more than 0 with nesterov");
    if (hyper.dampening != 0)
        checker.refuse("dampening", hyper.dampening, "must be 0 with nesterov");
}

void check_fields(const Checker& checker, const AdagradHyperParameters& hyper) {
    checker.not_negative("learning_rate", hyper.learning_rate);
    checker.not_negative("learning_rate_decay", hyper.learning_rate_decay);
    checker.not_negative("weight_decay", hyper.weight_decay);
    checker.not_negative("initial_accumulator_value", hyper.initial_accumulator_value);
    checker.not_negative("epsilon", hyper.epsilon);
}

void check_fields(const Checker& checker, const LionHyperParameters& hyper) {
    checker.not_negative("learning_rate", hyper.learning_rate);
    checker.not_negative("weight_decay", hyper.weight_decay);
    checker.beta("beta1", hyper.beta1);
    checker.beta("beta2", hyper.beta2);
}

void check_fields(const Checker& checker, const RmspropHyperParameters& hyper) {
    checker.not_negative("learning_rate", hyper.learning_rate);
    checker.not_negative("alpha", hyper.alpha);
    checker.not_negative("epsilon", hyper.epsilon);
    checker.not_negative("weight_decay", hyper.weight_decay);
    checker.not_negative("momentum", hyper.momentum);
}

constexpr Term term(bool is_on) {
    return is_on ? Term::on : Term::off;
}

/// What the moment and the gradient itself are multiplied by.
struct AdamSteps {
    double of_moment;
    double of_gradient;
};

AdamSteps adam_steps(const AdamHyperParameters& hyper, std::uint64_t step) {
    if (hyper.nesterov == Nesterov::off)
        return {hyper.learning_rate / (1 - power(hyper.beta1, step)), 0};
    const double now = detail::nadam_momentum(hyper.beta1, hyper.momentum_decay, step);
    const double next = detail::nadam_momentum(hyper.beta1, hyper.momentum_decay, step + 1);
    const double product = detail::nadam_momentum_product(hyper.beta1, hyper.momentum_decay, step);
    return {hyper.learning_rate * next / (1 - product * next),
            hyper.learning_rate * (1 - now) / (1 - product)};
}

AdamCoefficients derive(const Checker& checker, const AdamHyperParameters& hyper,
                        const Step& step) {
    const double bias_correction2 = 1 - power(hyper.beta2, step.number);
    const bool is_decoupled = hyper.decay == WeightDecay::decoupled;
    const double decay = is_decoupled ? hyper.learning_rate * hyper.weight_decay : 0;
    const AdamSteps steps = adam_steps(hyper, step.number);
    return {
        .gradient_scale = signed_scale(checker, hyper.objective, step.gradient_scale),
        .decoupled_decay = term(is_decoupled),
        .decay = checker.narrow("learning_rate * weight_decay", decay),
        .l2 = checker.narrow("weight_decay", is_decoupled ? 0 : hyper.weight_decay),
        .one_minus_beta1 = checker.narrow("1 - beta1", 1 - hyper.beta1),
        .beta2 = checker.narrow("beta2", hyper.beta2),
        .one_minus_beta2 = checker.narrow("1 - beta2", 1 - hyper.beta2),
        .inv_sqrt_bias_correction2 =
            checker.narrow("1 / sqrt(1 - beta2^step)", 1 / std::sqrt(bias_correction2)),
        .epsilon = checker.narrow("epsilon", hyper.epsilon),
        .step_size = checker.narrow("learning_rate / (1 - beta1^step)", steps.of_moment),
        .amsgrad = term(hyper.amsgrad == Amsgrad::on),
        .nesterov = term(hyper.nesterov == Nesterov::on),
        .gradient_step = checker.narrow("the step of the gradient", steps.of_gradient),
    };
}

SgdCoefficients derive(const Checker& checker, const SgdHyperParameters& hyper, const Step& step) {
    const MomentumBuffer buffer = hyper.momentum == 0 ? MomentumBuffer::none
                                  : step.number == 1  ? MomentumBuffer::starts
                                                      : MomentumBuffer::continues;
    return {
        .gradient_scale = signed_scale(checker, hyper.objective, step.gradient_scale),
        .l2 = checker.narrow("weight_decay", hyper.weight_decay),
        .buffer = buffer,
        .momentum = checker.narrow("momentum", hyper.momentum),
        .one_minus_dampening = checker.narrow("1 - dampening", 1 - hyper.dampening),
        .nesterov = term(hyper.nesterov == Nesterov::on),
        .learning_rate = checker.narrow("learning_rate", hyper.learning_rate),
    };
}

AdagradCoefficients derive(const Checker& checker, const AdagradHyperParameters& hyper,
                           const Step& step) {
    const double slowing = 1 + static_cast<double>(step.number - 1) * hyper.learning_rate_decay;
    const double added = step.number == 1 ? hyper.initial_accumulator_value : 0;
    return {
        .gradient_scale = signed_scale(checker, hyper.objective, step.gradient_scale),
        .l2 = checker.narrow("weight_decay", hyper.weight_decay),
        .added_accumulator = checker.narrow("initial_accumulator_value", added),
        .epsilon = checker.narrow("epsilon", hyper.epsilon),
        .step_size = checker.narrow("learning_rate", hyper.learning_rate / slowing),
    };
}

LionCoefficients derive(const Checker& checker, const LionHyperParameters& hyper,
                        const Step& step) {
    return {
        .gradient_scale = signed_scale(checker, hyper.objective, step.gradient_scale),
        .decay = checker.narrow("learning_rate * weight_decay",
                                hyper.learning_rate * hyper.weight_decay),
        .beta1 = checker.narrow("beta1", hyper.beta1),
        .one_minus_beta1 = checker.narrow("1 - beta1", 1 - hyper.beta1),
        .beta2 = checker.narrow("beta2", hyper.beta2),
        .one_minus_beta2 = checker.narrow("1 - beta2", 1 - hyper.beta2),
        .learning_rate = checker.narrow("learning_rate", hyper.learning_rate),
    };
}

RmspropCoefficients derive(const Checker& checker, const RmspropHyperParameters& hyper,
                           const Step& step) {
    return {
        .gradient_scale = signed_scale(checker, hyper.objective, step.gradient_scale),
        .l2 = checker.narrow("weight_decay", hyper.weight_decay),
        .alpha = checker.narrow("alpha", hyper.alpha),
        .one_minus_alpha = checker.narrow("1 - alpha", 1 - hyper.alpha),
        .epsilon = checker.narrow("epsilon", hyper.epsilon),
        .has_momentum = term(hyper.momentum != 0),
        .momentum = checker.narrow("momentum", hyper.momentum),
        .centred = term(hyper.centred == Centred::on),
        .learning_rate = checker.narrow("learning_rate", hyper.learning_rate),
    };
}

struct NameOf {
    std::string_view operator()(const AdamHyperParameters& hyper) const noexcept {
        if (hyper.nesterov == Nesterov::on)
            return "NAdam";
        return hyper.decay == WeightDecay::decoupled ? "AdamW" : "Adam";
    }
    std::string_view operator()(const SgdHyperParameters&) const noexcept { return "SGD"; }
    std::string_view operator()(const AdagradHyperParameters&) const noexcept { return "Adagrad"; }
    std::string_view operator()(const LionHyperParameters&) const noexcept { return "Lion"; }
    std::string_view operator()(const RmspropHyperParameters&) const noexcept { return "RMSprop"; }
};

struct PlanesOf {
    std::size_t operator()(const AdamHyperParameters& hyper) const noexcept {
        return hyper.amsgrad == Amsgrad::on ? 3 : 2;
    }
    std::size_t operator()(const SgdHyperParameters& hyper) const noexcept {
        return hyper.momentum == 0 ? 0 : 1;
    }
    std::size_t operator()(const AdagradHyperParameters&) const noexcept { return 1; }
    std::size_t operator()(const LionHyperParameters&) const noexcept { return 1; }
    std::size_t operator()(const RmspropHyperParameters& hyper) const noexcept {
        return 1u + (hyper.momentum == 0 ? 0u : 1u) + (hyper.centred == Centred::on ? 1u : 0u);
    }
};

}  // namespace

std::string_view optimizer_name(const HyperParameters& hyper) noexcept {
    return std::visit(NameOf(), hyper);
}

std::size_t state_planes(const HyperParameters& hyper) noexcept {
    return std::visit(PlanesOf(), hyper);
}

void check(const HyperParameters& hyper) {
    const Checker checker(optimizer_name(hyper));
    std::visit([&](const auto& fields) { check_fields(checker, fields); }, hyper);
}

ElementwiseCoefficients make_coefficients(const HyperParameters& hyper, std::uint64_t step,
                                          double gradient_scale) {
    check(hyper);
    const Checker checker(optimizer_name(hyper));
    const auto at = detail::checked_step(checker, step, gradient_scale);
    return std::visit(
        [&](const auto& fields) {
            return ElementwiseCoefficients{.rule = derive(checker, fields, at)};
        },
        hyper);
}

}  // namespace spillway::cpu_optim
