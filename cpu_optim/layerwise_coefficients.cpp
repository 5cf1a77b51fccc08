// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <algorithm>
#include <cmath>

#include "cpu_optim/detail/hyper_checker.h"
#include "cpu_optim/detail/power.h"
#include "cpu_optim/layerwise.h"
#include "cpu_optim/moment_kinds.h"

namespace spillway::cpu_optim {
namespace {

using detail::HyperChecker;
using detail::power;
using detail::signed_scale;
using Step = detail::RuleStep;

void check_fields(const HyperChecker& checker, const LambHyperParameters& hyper) {
    checker.not_negative("learning_rate", hyper.learning_rate);
    checker.not_negative("epsilon", hyper.epsilon);
    checker.not_negative("weight_decay", hyper.weight_decay);
    checker.beta("beta1", hyper.beta1);
    checker.beta("beta2", hyper.beta2);
    checker.not_negative("least_weight_norm", hyper.least_weight_norm);
    if (!(hyper.most_weight_norm >= hyper.least_weight_norm))
        checker.refuse("most_weight_norm", hyper.most_weight_norm,
                       "must not be below least_weight_norm");
}

void check_fields(const HyperChecker& checker, const LarsHyperParameters& hyper) {
    checker.not_negative("learning_rate", hyper.learning_rate);
    checker.not_negative("momentum", hyper.momentum);
    checker.not_negative("weight_decay", hyper.weight_decay);
    checker.not_negative("trust_coefficient", hyper.trust_coefficient);
}

LambCoefficients derive(const HyperChecker& checker, const LambHyperParameters& hyper,
                        const Step& step) {
    const double bias_correction1 = 1 - power(hyper.beta1, step.number);
    const double bias_correction2 = 1 - power(hyper.beta2, step.number);
    return {
        .gradient_scale = signed_scale(checker, hyper.objective, step.gradient_scale),
        .one_minus_beta1 = checker.narrow("1 - beta1", 1 - hyper.beta1),
        .beta2 = checker.narrow("beta2", hyper.beta2),
        .one_minus_beta2 = checker.narrow("1 - beta2", 1 - hyper.beta2),
        .inv_bias_correction1 = checker.narrow("1 / (1 - beta1^step)", 1 / bias_correction1),
        .inv_sqrt_bias_correction2 =
            checker.narrow("1 / sqrt(1 - beta2^step)", 1 / std::sqrt(bias_correction2)),
        .epsilon = checker.narrow("epsilon", hyper.epsilon),
        .weight_decay = checker.narrow("weight_decay", hyper.weight_decay),
    };
}

LarsCoefficients derive(const HyperChecker& checker, const LarsHyperParameters& hyper,
                        const Step& step) {
    return {
        .gradient_scale = signed_scale(checker, hyper.objective, step.gradient_scale),
        .momentum = checker.narrow("momentum", hyper.momentum),
        .weight_decay = checker.narrow("weight_decay", hyper.weight_decay),
    };
}

struct Norms {
    double weight;
    double direction;
};

double trust_ratio(const LambHyperParameters& hyper, const Norms& norms) {
    const double phi = std::clamp(norms.weight, hyper.least_weight_norm, hyper.most_weight_norm);
    return phi / norms.direction;
}

double trust_ratio(const LarsHyperParameters& hyper, const Norms& norms) {
    return hyper.trust_coefficient * norms.weight /
           (norms.direction + hyper.weight_decay * norms.weight);
}

struct NeedsOf {
    OptimizerNeeds operator()(const LambHyperParameters&) const noexcept {
        return {.state_planes = 2,
                .passes = 2,
                .gradient_passes = 2,
                .reach = Reach::tensor,
                .measured_planes = 2};
    }
    OptimizerNeeds operator()(const LarsHyperParameters&) const noexcept {
        return {.state_planes = 1, .passes = 2, .gradient_passes = 2, .reach = Reach::tensor};
    }
};

struct NameOf {
    std::string_view operator()(const LambHyperParameters&) const noexcept { return "LAMB"; }
    std::string_view operator()(const LarsHyperParameters&) const noexcept { return "LARS"; }
};

}  // namespace

OptimizerNeeds needs(const HyperParameters& hyper) noexcept {
    return {.state_planes = state_planes(hyper),
            .passes = 1,
            .gradient_passes = 1,
            .reach = Reach::element};
}

OptimizerNeeds needs(const LayerwiseHyperParameters& hyper) noexcept {
    return std::visit(NeedsOf(), hyper);
}

std::string_view optimizer_name(const LayerwiseHyperParameters& hyper) noexcept {
    return std::visit(NameOf(), hyper);
}

void check(const LayerwiseHyperParameters& hyper) {
    const HyperChecker checker(optimizer_name(hyper));
    std::visit([&](const auto& fields) { check_fields(checker, fields); }, hyper);
}

void check(const LayerwiseHyperParameters& hyper, StateFormat /*format*/) {
    check(hyper);
}

std::array<MomentKind, most_lossy_planes> moment_kinds(
    const LayerwiseHyperParameters& hyper) noexcept {
    return std::holds_alternative<LambHyperParameters>(hyper) ? kinds_of<LambStep>
                                                              : kinds_of<LarsStep>;
}

LayerwiseCoefficients make_coefficients(const LayerwiseHyperParameters& hyper, std::uint64_t step,
                                        double gradient_scale) {
    check(hyper);
    const HyperChecker checker(optimizer_name(hyper));
    const auto at = detail::checked_step(checker, step, gradient_scale);
    return std::visit(
        [&](const auto& fields) {
            return LayerwiseCoefficients{.rule = derive(checker, fields, at)};
        },
        hyper);
}

float layer_step(const LayerwiseHyperParameters& hyper, const LayerSums& sums) {
    const HyperChecker checker(optimizer_name(hyper));
    const Norms norms{std::sqrt(sums.weight_squares), std::sqrt(sums.direction_squares)};
    checker.finite("the weights' norm", norms.weight);
    checker.finite("the direction's norm", norms.direction);
    if (norms.weight == 0 || norms.direction == 0)
        return layer_step_without_trust(hyper);
    return std::visit(
        [&](const auto& fields) {
            return checker.narrow("learning_rate times the trust ratio",
                                  fields.learning_rate * trust_ratio(fields, norms));
        },
        hyper);
}

float layer_step_without_trust(const LayerwiseHyperParameters& hyper) {
    const HyperChecker checker(optimizer_name(hyper));
    return std::visit(
        [&](const auto& fields) { return checker.narrow("learning_rate", fields.learning_rate); },
        hyper);
}

LayerwiseStep with_step(const LayerwiseCoefficients& coefficients, float step) noexcept {
    struct WithStep {
        float step;
        LayerwiseStep operator()(const LambCoefficients& rule) const {
            return {LambStep{rule, step}};
        }
        LayerwiseStep operator()(const LarsCoefficients& rule) const {
            return {LarsStep{rule, step}};
        }
    };
    return std::visit(WithStep{step}, coefficients.rule);
}

}  // namespace spillway::cpu_optim
