// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/elementwise_reference.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/cpu_optim/elementwise_cases.h"
#include "tests/cpu_optim/elementwise_model.h"
#include "tests/cpu_optim/sample_values.h"

namespace spillway::cpu_optim {
namespace {

using testing::ElementwiseModel;

constexpr std::uint64_t steps = 200;
constexpr std::uint64_t elements = 48;

using Update = std::function<ElementwiseElement(ElementwiseCoefficients, const ElementwiseElement&,
                                                float gradient)>;

ElementwiseElement by_reference(const ElementwiseCoefficients& coefficients,
                                const ElementwiseElement& old, float gradient) {
    return std::visit([&](const auto& rule) { return updated(rule, old, gradient); },
                      coefficients.rule);
}

/// One whole vector of the widest kind and one element more.
Update kernel_on(Isa isa) {
    return [isa](const ElementwiseCoefficients& coefficients, const ElementwiseElement& old,
                 float gradient) {
        constexpr std::size_t length = 17;
        std::array<float, length> master, gradients;
        std::array<std::array<float, length>, most_state_planes> state;
        master.fill(old.master);
        gradients.fill(gradient);
        ElementwiseRun run{.elements = length, .master = master.data()};
        run.gradient = gradients.data();
        for (std::size_t plane = 0; plane < state.size(); ++plane) {
            state[plane].fill(old.state[plane]);
            run.state[plane] = state[plane].data();
        }
        REQUIRE(update_run(isa, coefficients, run) == 0);
        return ElementwiseElement{master[5], {state[0][5], state[1][5], state[2][5]}};
    };
}

/// Gradients that change sign, some elements always small, some always large, some mixed.
float trajectory_gradient(std::uint64_t element, std::uint64_t step) {
    const std::uint64_t n = element * 1000 + step;
    if (element % 3 == 0)
        return testing::sample_magnitude(21, n, 1e-8, 1e-5);
    return element % 3 == 1 ? testing::sample_magnitude(21, n, 1.0, 1e3)
                            : testing::sample_magnitude(21, n, 1e-8, 1e3);
}

/// How far the elements of an update leave the model's bounds.
struct Distances {
    double each_step = 0;  ///< the model started from the element's own state before each step
    double whole_run = 0;  ///< the model followed from the first step
    std::uint64_t loose_steps = 0;  ///< with a bound of more than 1e-5 of the weight and its change
};

Distances follow(const HyperParameters& hyper, double scale, const Update& update) {
    Distances distances;
    for (std::uint64_t e = 0; e < elements; ++e) {
        ElementwiseElement element{testing::sample_magnitude(22, e, 1e-3, 1.0), {}};
        ElementwiseModel followed(hyper, element);
        for (std::uint64_t t = 1; t <= steps; ++t) {
            const float gradient = trajectory_gradient(e, t);
            ElementwiseModel restarted(hyper, element);
            const double before = element.master;
            restarted.step(t, gradient, scale);
            followed.step(t, gradient, scale);
            element = update(make_coefficients(hyper, t, scale), element, gradient);
            distances.each_step = std::max(distances.each_step, restarted.distance_of(element));
            distances.whole_run = std::max(distances.whole_run, followed.distance_of(element));
            const double size = std::abs(before) + std::abs(restarted.w().value - before);
            distances.loose_steps += restarted.w().error > 1e-5 * size ? 1u : 0u;
        }
    }
    return distances;
}

template <class Coefficients>
using Numbers = std::vector<float Coefficients::*>;

Numbers<AdamCoefficients> numbers_of(const AdamCoefficients&) {
    using C = AdamCoefficients;
    return {&C::gradient_scale,
            &C::decay,
            &C::l2,
            &C::one_minus_beta1,
            &C::beta2,
            &C::one_minus_beta2,
            &C::inv_sqrt_bias_correction2,
            &C::epsilon,
            &C::step_size,
            &C::gradient_step};
}
Numbers<SgdCoefficients> numbers_of(const SgdCoefficients& c) {
    using C = SgdCoefficients;
    if (c.buffer == MomentumBuffer::none)
        return {&C::gradient_scale, &C::l2, &C::learning_rate};
    return {&C::gradient_scale, &C::l2, &C::momentum, &C::one_minus_dampening, &C::learning_rate};
}
Numbers<AdagradCoefficients> numbers_of(const AdagradCoefficients&) {
    using C = AdagradCoefficients;
    return {&C::gradient_scale, &C::l2, &C::added_accumulator, &C::epsilon, &C::step_size};
}
Numbers<LionCoefficients> numbers_of(const LionCoefficients&) {
    using C = LionCoefficients;
    return {&C::gradient_scale, &C::decay,           &C::beta1,        &C::one_minus_beta1,
            &C::beta2,          &C::one_minus_beta2, &C::learning_rate};
}
Numbers<RmspropCoefficients> numbers_of(const RmspropCoefficients&) {
    using C = RmspropCoefficients;
    return {&C::gradient_scale, &C::l2,       &C::alpha,        &C::one_minus_alpha,
            &C::epsilon,        &C::momentum, &C::learning_rate};
}

/// The reference with number `index` one percent too large.
Update with_wrong_number(std::size_t index) {
    return [index](ElementwiseCoefficients coefficients, const ElementwiseElement& old,
                   float gradient) {
        std::visit([index](auto& rule) { rule.*(numbers_of(rule)[index]) *= 1.01F; },
                   coefficients.rule);
        return by_reference(coefficients, old, gradient);
    };
}

void flip(Term& term) {
    term = term == Term::on ? Term::off : Term::on;
}

/// One switch in the wrong place, `index` of those the rule has; false if it has no more.
bool set_wrong(AdamCoefficients& c, std::size_t index) {
    const bool decays = c.decay != 0 || c.l2 != 0;
    if (index == 0)
        flip(c.amsgrad);
    if (index == 1)
        c.gradient_scale = -c.gradient_scale;
    if (index == 2) {
        const float learning_rate = 1e-3F;
        const float decay = c.l2 * learning_rate;
        c.l2 = c.decay / learning_rate;
        c.decay = decay;
        flip(c.decoupled_decay);
    }
    return index < (decays ? 3u : 2u);
}
bool set_wrong(SgdCoefficients& c, std::size_t index) {
    if (index == 0)
        c.gradient_scale = -c.gradient_scale;
    if (index == 1)
        flip(c.nesterov);
    if (index == 2 && c.buffer == MomentumBuffer::starts)
        c.one_minus_dampening = 0.5F;
    if (index == 2)
        c.buffer = MomentumBuffer::continues;
    return index < (c.buffer == MomentumBuffer::none ? 1u : 3u);
}
bool set_wrong(AdagradCoefficients& c, std::size_t index) {
    if (index == 0)
        c.gradient_scale = -c.gradient_scale;
    if (index == 1)
        c.added_accumulator = 0.01F;
    return index < 2;
}
bool set_wrong(LionCoefficients& c, std::size_t index) {
    if (index == 0)
        c.gradient_scale = -c.gradient_scale;
    if (index == 1)
        std::swap(c.beta1, c.beta2);
    return index < 2;
}
bool set_wrong(RmspropCoefficients& c, std::size_t index) {
    if (index == 0)
        c.gradient_scale = -c.gradient_scale;
    if (index == 1)
        flip(c.centred);
    if (index == 2)
        flip(c.has_momentum);
    return index < (c.momentum != 0 ? 3u : 2u);
}

bool set_wrong(ElementwiseCoefficients& coefficients, std::size_t index) {
    return std::visit([index](auto& rule) { return set_wrong(rule, index); }, coefficients.rule);
}

double worst(const Distances& distances) {
    return std::max(distances.each_step, distances.whole_run);
}

}  // namespace

TEMPLATE_TEST_CASE_SIG("every rule follows its paper in double within the bounds of its roundings",
                       "", ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    for (const auto& [name, hyper] : testing::every_rule())
        for (const double scale : {1.0, 0.3}) {
            CAPTURE(name, scale);
            const Distances distances = follow(hyper, scale, kernel_on(isa));
            CHECK(distances.each_step <= 1);
            CHECK(distances.whole_run <= 1);
            CHECK(distances.loose_steps * 100 <= steps * elements);
        }
}

TEST_CASE("a coefficient that is one percent off leaves the bounds, whichever it is") {
    for (const auto& [name, hyper] : testing::every_rule()) {
        const auto first = make_coefficients(hyper, 1, 1.0);
        const std::size_t count =
            std::visit([](const auto& rule) { return numbers_of(rule).size(); }, first.rule);
        for (std::size_t index = 0; index < count; ++index) {
            const float value = std::visit(
                [&](const auto& rule) { return rule.*(numbers_of(rule)[index]); }, first.rule);
            CAPTURE(name, index, value);
            if (value != 0)
                CHECK(worst(follow(hyper, 1.0, with_wrong_number(index))) > 1);
        }
    }
}

TEST_CASE("a switch in the wrong place leaves the bounds, whichever it is") {
    for (const auto& [name, hyper] : testing::every_rule())
        for (std::size_t index = 0;; ++index) {
            auto first = make_coefficients(hyper, 1, 1.0);
            if (!set_wrong(first, index))
                break;
            CAPTURE(name, index);
            const Update update = [index](ElementwiseCoefficients coefficients,
                                          const ElementwiseElement& old, float gradient) {
                set_wrong(coefficients, index);
                return by_reference(coefficients, old, gradient);
            };
            CHECK(worst(follow(hyper, 1.0, update)) > 1);
        }
}

}  // namespace spillway::cpu_optim
