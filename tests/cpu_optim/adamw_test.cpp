// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/adamw.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>
#include <vector>

#include <catch2/catch.hpp>

#include "cpu_optim/split_master.h"
#include "tests/cpu_optim/adamw_model.h"
#include "tests/cpu_optim/guarded_buffer.h"
#include "tests/cpu_optim/sample_values.h"

namespace spillway::cpu_optim {
namespace {

using testing::AdamWModel;
using testing::GuardedBuffer;
using testing::Placement;

/// The five planes of a run, between guard pages.
struct Run {
    explicit Run(std::size_t length, Placement placement = Placement::at_first_guard)
        : weight(length, placement),
          residue(length, placement),
          m(length, placement),
          v(length, placement),
          gradient(length, placement) {}

    template <typename Sample>
    void fill(Sample sample) {
        for (std::size_t i = 0; i < weight.span().size(); ++i) {
            put(i, {.master = sample(11, i), .m = sample(12, i), .v = std::abs(sample(13, i))});
            gradient.span()[i] = sample(14, i);
        }
    }
    void put(std::size_t i, const AdamWElement& element) {
        const SplitWeight halves = split(element.master);
        weight.span()[i] = halves.hi;
        residue.span()[i] = halves.lo;
        m.span()[i] = element.m;
        v.span()[i] = element.v;
    }
    [[nodiscard]] AdamWElement get(std::size_t i) const {
        return {.master = join({weight.span()[i], residue.span()[i]}),
                .m = m.span()[i],
                .v = v.span()[i]};
    }
    [[nodiscard]] AdamWSpans spans(std::size_t from, std::size_t length) const {
        return {weight.span().subspan(from, length), residue.span().subspan(from, length),
                m.span().subspan(from, length), v.span().subspan(from, length),
                gradient.span().subspan(from, length)};
    }
    [[nodiscard]] AdamWSpans all() const { return spans(0, weight.span().size()); }
    [[nodiscard]] bool unharmed() const {
        return weight.unharmed() && residue.unharmed() && m.unharmed() && v.unharmed() &&
               gradient.unharmed();
    }

    GuardedBuffer<std::uint16_t> weight;
    GuardedBuffer<std::int16_t> residue;
    GuardedBuffer<float> m, v, gradient;
};

std::size_t update_by_reference(const AdamWCoefficients& coefficients, Run& run) {
    std::size_t without_finite_hi = 0;
    for (std::size_t i = 0; i < run.weight.span().size(); ++i) {
        const auto updated = adamw_reference(coefficients, run.get(i), run.gradient.span()[i]);
        run.put(i, updated);
        without_finite_hi += has_finite_hi(updated.master) ? 0u : 1u;
    }
    return without_finite_hi;
}

void require_same_bits(const Run& found, const Run& expected) {
    const std::size_t length = expected.weight.span().size();
    REQUIRE(testing::first_difference<std::uint16_t>(found.weight.span(), expected.weight.span()) ==
            length);
    REQUIRE(testing::first_difference<std::int16_t>(found.residue.span(),
                                                    expected.residue.span()) == length);
    REQUIRE(testing::first_difference<float>(found.m.span(), expected.m.span()) == length);
    REQUIRE(testing::first_difference<float>(found.v.span(), expected.v.span()) == length);
    REQUIRE(testing::first_difference<float>(found.gradient.span(), expected.gradient.span()) ==
            length);
}

/// Gradients that change sign, some elements always small, some always large, some mixed.
float trajectory_gradient(std::uint64_t element, std::uint64_t step) {
    const std::uint64_t n = element * 1000 + step;
    if (element % 3 == 0)
        return testing::sample_magnitude(21, n, 1e-8, 1e-5);
    return element % 3 == 1 ? testing::sample_magnitude(21, n, 1.0, 1e3)
                            : testing::sample_magnitude(21, n, 1e-8, 1e3);
}

AdamWElement first_element(std::uint64_t element) {
    return {.master = testing::sample_magnitude(22, element, 1e-3, 1.0), .m = 0, .v = 0};
}

using Update = std::function<AdamWElement(const AdamWCoefficients&, const AdamWElement&, float)>;

/// How far the elements of `update` leave the model's bounds over `steps` steps.
struct Distances {
    double each_step = 0;  ///< the model started from the element's own state before each step
    double whole_run = 0;  ///< the model followed from the first step
    double bound_of_step =
        0;  ///< the largest bound of one step, relative to the weight and its change
};

Distances follow(const AdamWHyperParameters& hyper, double scale, std::uint64_t steps,
                 const Update& update) {
    Distances distances;
    for (std::uint64_t e = 0; e < 96; ++e) {
        AdamWElement element = first_element(e);
        AdamWModel followed(element.master, element.m, element.v);
        for (std::uint64_t t = 1; t <= steps; ++t) {
            const float gradient = trajectory_gradient(e, t);
            AdamWModel restarted(element.master, element.m, element.v);
            restarted.step(hyper, t, gradient, scale);
            followed.step(hyper, t, gradient, scale);
            const double size = std::abs(element.master) + hyper.learning_rate;
            element = update(make_coefficients(hyper, t, scale), element, gradient);
            distances.each_step = std::fmax(distances.each_step, restarted.distance(element));
            distances.bound_of_step =
                std::fmax(distances.bound_of_step, restarted.w().error / size);
        }
        distances.whole_run = std::fmax(distances.whole_run, followed.distance(element));
    }
    return distances;
}

Update kernel_on(Isa isa) {
    return
        [isa](const AdamWCoefficients& coefficients, const AdamWElement& element, float gradient) {
            constexpr std::size_t length = 16;  // one whole vector of the widest kind
            const SplitWeight halves = split(element.master);
            std::array<std::uint16_t, length> weight;
            std::array<std::int16_t, length> residue;
            std::array<float, length> m, v, gradients;
            weight.fill(halves.hi);
            residue.fill(halves.lo);
            m.fill(element.m);
            v.fill(element.v);
            gradients.fill(gradient);
            REQUIRE(adamw_update(isa, coefficients, {weight, residue, m, v, gradients}) == 0);
            return AdamWElement{.master = join({weight[5], residue[5]}), .m = m[5], .v = v[5]};
        };
}

/// The reference with one thing wrong.
enum class Flaw {
    no_root,
    epsilon_under_root,
    decay_in_gradient,
    no_bias_correction,
    moment_before_decay_of_v
};

AdamWElement flawed(Flaw flaw, const AdamWHyperParameters& hyper, AdamWCoefficients c,
                    const AdamWElement& old, float gradient) {
    float g = gradient * c.gradient_scale;
    if (flaw == Flaw::decay_in_gradient) {
        g += static_cast<float>(hyper.weight_decay) * old.master;
        c.decay = 0;
    }
    if (flaw == Flaw::no_bias_correction)
        c.step_size = static_cast<float>(hyper.learning_rate);
    const float m = old.m + c.one_minus_beta1 * (g - old.m);
    float v = c.beta2 * old.v + c.one_minus_beta2 * g * g;
    if (flaw == Flaw::moment_before_decay_of_v)
        v = c.beta2 * (old.v + c.one_minus_beta2 * g * g);
    float root = std::sqrt(v) * c.inv_sqrt_bias_correction2 + c.epsilon;
    if (flaw == Flaw::no_root)
        root = v * c.inv_sqrt_bias_correction2 + c.epsilon;
    if (flaw == Flaw::epsilon_under_root)
        root = std::sqrt(v * c.inv_sqrt_bias_correction2 * c.inv_sqrt_bias_correction2 + c.epsilon);
    const float w = old.master - c.decay * old.master;
    return {.master = w - c.step_size * m / root, .m = m, .v = v};
}

constexpr AdamWHyperParameters strong_decay{
    .learning_rate = 3e-3, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1};

}  // namespace

TEMPLATE_TEST_CASE_SIG("adamw_update has the reference's bits for any length, place and value", "",
                       ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    const auto coefficients = make_coefficients(strong_decay, 3, 0.37);
    for (const std::size_t length : testing::awkward_lengths())
        for (const Placement placement : testing::every_placement) {
            CAPTURE(length, placement);
            Run expected(length);
            Run found(length, placement);
            expected.fill(testing::sample_any);
            found.fill(testing::sample_any);
            const std::size_t without_finite_hi = update_by_reference(coefficients, expected);
            REQUIRE(adamw_update(isa, coefficients, found.all()) == without_finite_hi);
            require_same_bits(found, expected);
            REQUIRE(found.unharmed());
        }
}

TEMPLATE_TEST_CASE_SIG("adamw_update has the same bits however a run is cut", "", ((Isa isa), isa),
                       Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    constexpr std::size_t length = 16384 + 3;
    const auto coefficients = make_coefficients(strong_decay, 1, 1.0);
    const auto sample = [](std::uint64_t stream, std::uint64_t n) {
        return testing::sample_magnitude(stream, n, 1e-8, 1e3);
    };
    Run whole(length);
    whole.fill(sample);
    REQUIRE(adamw_update(isa, coefficients, whole.all()) == 0);
    for (const std::size_t piece : {1UL, 7UL, 16UL, 33UL, 4096UL}) {
        CAPTURE(piece);
        Run cut(length);
        cut.fill(sample);
        for (std::size_t from = 0; from < length; from += piece)
            REQUIRE(adamw_update(isa, coefficients,
                                 cut.spans(from, std::min(piece, length - from))) == 0);
        require_same_bits(cut, whole);
    }
}

TEMPLATE_TEST_CASE_SIG("every master without a finite half is counted", "", ((Isa isa), isa),
                       Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    constexpr std::size_t length = 1003;
    const auto coefficients = make_coefficients({}, 1, 1.0);
    for (const float bad : {std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(), std::nanf("")})
        for (const std::size_t place : {std::size_t{0}, length / 2, length - 1}) {
            CAPTURE(bad, place);
            Run run(length);
            run.fill([](std::uint64_t, std::uint64_t) { return 0.5F; });
            run.gradient.span()[place] = bad;
            REQUIRE(adamw_update(isa, coefficients, run.all()) == 1);
        }
    Run run(length);
    run.fill([](std::uint64_t, std::uint64_t) { return 0.0F; });
    run.put(0, {.master = std::bit_cast<float>(0x7F7F7FFFu), .m = 0, .v = 1});
    run.put(1, {.master = std::bit_cast<float>(0xFF7F8000u), .m = 0, .v = 1});
    const auto no_decay = make_coefficients({.weight_decay = 0}, 1, 1.0);
    REQUIRE(adamw_update(isa, no_decay, run.all()) == 1);
}

TEMPLATE_TEST_CASE_SIG("AdamW follows the paper in double within the bounds of its roundings", "",
                       ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    AdamWHyperParameters no_decay;
    no_decay.weight_decay = 0;
    for (const auto& hyper : {AdamWHyperParameters{}, no_decay, strong_decay})
        for (const double scale : {1.0, 0.3}) {
            CAPTURE(hyper.weight_decay, scale);
            const Distances distances = follow(hyper, scale, 120, kernel_on(isa));
            CHECK(distances.each_step <= 1);
            CHECK(distances.whole_run <= 1);
            CHECK(distances.bound_of_step < 1e-6);
        }
}

TEST_CASE("the bounds of the comparison in double are tight enough to find each planted flaw") {
    for (const Flaw flaw : {Flaw::no_root, Flaw::epsilon_under_root, Flaw::decay_in_gradient,
                            Flaw::no_bias_correction, Flaw::moment_before_decay_of_v}) {
        CAPTURE(flaw);
        const Update update = [flaw](const AdamWCoefficients& coefficients,
                                     const AdamWElement& element, float gradient) {
            return flawed(flaw, strong_decay, coefficients, element, gradient);
        };
        const Distances distances = follow(strong_decay, 1.0, 120, update);
        CHECK(distances.each_step > 10);
        CHECK(distances.whole_run > 10);
    }
}

TEST_CASE("a zero gradient decays the weight and leaves empty moments empty") {
    const auto coefficients =
        make_coefficients({.learning_rate = 0.5, .weight_decay = 0.5}, 1, 1.0);
    const auto updated = adamw_reference(coefficients, {.master = 2, .m = 0, .v = 0}, 0);
    REQUIRE(updated.master == 1.5F);
    REQUIRE(updated.m == 0);
    REQUIRE(updated.v == 0);
}

TEST_CASE("AdamW's defaults are torch's") {
    constexpr AdamWHyperParameters hyper;
    REQUIRE(hyper.learning_rate == 1e-3);
    REQUIRE(hyper.beta1 == 0.9);
    REQUIRE(hyper.beta2 == 0.999);
    REQUIRE(hyper.epsilon == 1e-8);
    REQUIRE(hyper.weight_decay == 0.01);
}

TEST_CASE("coefficients agree with powers in long double up to ten million steps") {
    constexpr AdamWHyperParameters hyper{.learning_rate = 1e-3, .beta1 = 0.95, .beta2 = 0.9999};
    for (const std::uint64_t step :
         {1UL, 2UL, 3UL, 10UL, 63UL, 64UL, 1000UL, 99'999UL, 10'000'000UL}) {
        CAPTURE(step);
        const auto exact = [step](double beta) {
            return 1 - std::pow(static_cast<long double>(beta), static_cast<long double>(step));
        };
        const auto c = make_coefficients(hyper, step, 0.25);
        const auto step_size = static_cast<double>(1e-3L / exact(hyper.beta1));
        const auto root = static_cast<double>(1 / std::sqrt(exact(hyper.beta2)));
        CHECK(c.step_size == Approx(step_size).epsilon(1e-7).margin(0));
        CHECK(c.inv_sqrt_bias_correction2 == Approx(root).epsilon(1e-7).margin(0));
        CHECK(c.gradient_scale == 0.25F);
        CHECK(c.decay == static_cast<float>(1e-3 * 0.01));
        CHECK(c.one_minus_beta2 == static_cast<float>(1 - 0.9999));
    }
}

TEST_CASE("hyper-parameters out of range are refused by name and value") {
    const double infinity = std::numeric_limits<double>::infinity();
    const auto make = [](const AdamWHyperParameters& hyper) {
        return make_coefficients(hyper, 1, 1.0);
    };
    REQUIRE_THROWS_WITH(make({.learning_rate = -1}),
                        "AdamW: learning_rate is -1 and must be a finite number, 0 or more");
    REQUIRE_THROWS_WITH(make({.beta1 = 1}), "AdamW: beta1 is 1 and must be at least 0 and below 1");
    REQUIRE_THROWS_AS(make({.learning_rate = infinity}), std::invalid_argument);
    REQUIRE_THROWS_AS(make({.beta2 = -0.1}), std::invalid_argument);
    REQUIRE_THROWS_AS(make({.beta2 = std::nan("")}), std::invalid_argument);
    REQUIRE_THROWS_AS(make({.epsilon = -1e-8}), std::invalid_argument);
    REQUIRE_THROWS_AS(make({.weight_decay = std::nan("")}), std::invalid_argument);
    REQUIRE_THROWS_AS(make({.learning_rate = 1e300}), std::invalid_argument);
    REQUIRE_THROWS_AS(make_coefficients({}, 0, 1.0), std::invalid_argument);
    REQUIRE_THROWS_AS(make_coefficients({}, 1, infinity), std::invalid_argument);
    REQUIRE_NOTHROW(make({.learning_rate = 0, .beta1 = 0, .beta2 = 0, .weight_decay = 0}));
}

TEST_CASE("adamw_update refuses spans of different lengths before it changes anything") {
    Run run(32);
    run.fill([](std::uint64_t, std::uint64_t) { return 1.0F; });
    AdamWSpans spans = run.all();
    spans.gradient = spans.gradient.first(31);
    REQUIRE_THROWS_WITH(adamw_update(best_isa(), make_coefficients({}, 1, 1.0), spans),
                        "adamw_update: span gradient has 31 elements and needs 32: all spans of a "
                        "call have one length");
    REQUIRE(run.get(0).master == 1.0F);
}

}  // namespace spillway::cpu_optim
