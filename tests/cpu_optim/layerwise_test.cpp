// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/layerwise.h"

#include <bit>
#include <cmath>
#include <deque>
#include <stdexcept>
#include <vector>

#include <catch2/catch.hpp>

#include "cpu_optim/layerwise_reference.h"
#include "tests/cpu_optim/elementwise_planes.h"

namespace spillway::cpu_optim {
namespace {

using testing::every_gradient_type;
using testing::every_layout;
using testing::MasterLayout;
using testing::Placement;
using testing::Planes;
using testing::StartValues;

const StartValues& start_values() {
    static const StartValues values(4097);
    return values;
}

std::vector<LayerwiseHyperParameters> every_rule() {
    return {
        LambHyperParameters{},
        LambHyperParameters{.beta1 = 0.8, .weight_decay = 0, .objective = Objective::maximise},
        LarsHyperParameters{},
        LarsHyperParameters{.momentum = 0, .weight_decay = 0, .objective = Objective::maximise}};
}

/// The shape of scan_gradient(), spelled out.
double sum_by_definition(const std::vector<double>& values) {
    double s[16] = {};
    for (std::size_t i = 0; i < values.size(); ++i)
        s[i % 16] += values[i] * values[i];
    for (int i = 0; i < 8; ++i)
        s[i] += s[i + 8];
    for (int i = 0; i < 4; ++i)
        s[i] += s[i + 4];
    return (s[0] + s[2]) + (s[1] + s[3]);
}

std::uint64_t bits_of(double value) {
    return std::bit_cast<std::uint64_t>(std::isnan(value) ? std::numeric_limits<double>::quiet_NaN()
                                                          : value);
}

/// What the reference makes of the first elements of `start` in both passes.
struct Expected {
    Expected(const LayerwiseCoefficients& coefficients, float step, const StartValues& start,
             GradientType type, std::size_t count) {
        std::vector<double> weights, directions;
        for (std::size_t i = 0; i < count; ++i) {
            const ElementwiseElement old{start.master[i],
                                         {start.state[0][i], start.state[1][i], start.state[2][i]}};
            const float g = detail::gradient_element(start.gradient(type), type, i);
            std::visit(
                [&](const auto& rule) {
                    const auto [element, direction] = prepared(rule, old, g);
                    old_elements.push_back(old);
                    new_elements.push_back(applied(rule, step, element, g));
                    weights.push_back(old.master);
                    directions.push_back(direction);
                },
                coefficients.rule);
            nonfinite += std::isfinite(new_elements.back().master) ? 0u : 1u;
            without_finite_hi += has_finite_hi(new_elements.back().master) ? 0u : 1u;
        }
        sums = {sum_by_definition(weights), sum_by_definition(directions)};
    }

    std::vector<ElementwiseElement> old_elements, new_elements;
    LayerSums sums;
    std::size_t nonfinite = 0;
    std::size_t without_finite_hi = 0;
};

void require_elements(const Planes& found, MasterLayout layout, std::size_t planes,
                      const std::vector<ElementwiseElement>& expected) {
    const auto bits = [](float value) { return std::bit_cast<std::uint32_t>(value); };
    std::size_t different = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
        different += bits(found.master(layout, i)) == bits(expected[i].master) ? 0u : 1u;
        for (std::size_t plane = 0; plane < planes; ++plane)
            different += bits(found.state(plane, i)) == bits(expected[i].state[plane]) ? 0u : 1u;
    }
    REQUIRE(different == 0);
}

/// Both passes of one rule over a run at every place, in every format.
void require_reference_bits(Isa isa, const LayerwiseHyperParameters& hyper, std::uint64_t step,
                            std::deque<Planes>& placed, std::size_t length) {
    const auto coefficients = make_coefficients(hyper, step, 0.37);
    const std::size_t planes = needs(hyper).state_planes;
    constexpr float layer_step = 0.013F;
    for (const GradientType type : every_gradient_type) {
        const Expected expected(coefficients, layer_step, start_values(), type, length);
        for (const MasterLayout layout : every_layout)
            for (Planes& found : placed) {
                CAPTURE(type, layout);
                found.fill(start_values(), type);
                const auto run = found.all(layout, type, planes);
                const LayerSums sums = measure_run(isa, coefficients, run);
                require_elements(found, layout, planes, expected.old_elements);
                REQUIRE(bits_of(sums.weight_squares) == bits_of(expected.sums.weight_squares));
                REQUIRE(bits_of(sums.direction_squares) ==
                        bits_of(expected.sums.direction_squares));
                const std::size_t counted =
                    update_run(isa, with_step(coefficients, layer_step), run);
                require_elements(found, layout, planes, expected.new_elements);
                REQUIRE(counted == (layout == MasterLayout::whole ? expected.nonfinite
                                                                  : expected.without_finite_hi));
                REQUIRE(found.unharmed());
            }
    }
}

}  // namespace

TEMPLATE_TEST_CASE_SIG("both passes have their reference's bits for any length, place and value",
                       "", ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    for (const std::size_t length : testing::awkward_lengths()) {
        if (length > start_values().master.size())
            continue;
        std::deque<Planes> placed;
        for (const Placement placement : testing::every_placement)
            placed.emplace_back(length, placement);
        for (const auto& hyper : every_rule())
            for (const std::uint64_t step : {1u, 3u}) {
                CAPTURE(length, optimizer_name(hyper), step);
                require_reference_bits(isa, hyper, step, placed, length);
            }
    }
}

TEMPLATE_TEST_CASE_SIG("finite values have finite sums with the bits of their definition", "",
                       ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    constexpr std::size_t length = 16384 + 5;
    StartValues start(length);
    for (std::size_t i = 0; i < length; ++i) {
        start.master[i] = testing::sample_magnitude(71, i, 1e-8, 1e3);
        start.gradient32[i] = testing::sample_magnitude(72, i, 1e-8, 1e3);
        start.state[0][i] = testing::sample_magnitude(73, i, 1e-8, 1e3);
        start.state[1][i] = std::abs(testing::sample_magnitude(74, i, 1e-8, 1e3));
    }
    Planes found(length, Placement::one_past_guard);
    for (const auto& hyper : every_rule()) {
        const auto coefficients = make_coefficients(hyper, 5, 1.0);
        const Expected expected(coefficients, 0, start, GradientType::fp32, length);
        found.fill(start, GradientType::fp32);
        const auto sums = measure_run(
            isa, coefficients,
            found.all(MasterLayout::halves, GradientType::fp32, needs(hyper).state_planes));
        REQUIRE((std::isfinite(sums.weight_squares) && sums.weight_squares > 0));
        REQUIRE((std::isfinite(sums.direction_squares) && sums.direction_squares > 0));
        REQUIRE(bits_of(sums.weight_squares) == bits_of(expected.sums.weight_squares));
        REQUIRE(bits_of(sums.direction_squares) == bits_of(expected.sums.direction_squares));
    }
}

TEMPLATE_TEST_CASE_SIG("tiles give the same bits in any order, and weights in pieces of any size",
                       "", ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    constexpr std::size_t tile = 512, tiles = 8;
    Planes found(tile * tiles, Placement::one_past_guard);
    for (const auto& hyper : every_rule())
        for (const std::size_t piece : {1UL, 7UL, 16UL, 33UL, 1024UL}) {
            CAPTURE(optimizer_name(hyper), piece);
            const auto coefficients = make_coefficients(hyper, 2, 1.0);
            const std::size_t planes = needs(hyper).state_planes;
            const Expected expected(coefficients, 0.5F, start_values(), GradientType::bf16,
                                    tile * tiles);
            const auto run = [&](std::size_t from, std::size_t elements) {
                return found.run(MasterLayout::halves, GradientType::bf16, planes, from, elements);
            };
            std::vector<LayerSums> forward(tiles), backward(tiles);
            found.fill(start_values(), GradientType::bf16);
            for (std::size_t n = 0; n < tiles; ++n)
                forward[n] = measure_run(isa, coefficients, run(n * tile, tile));
            found.fill(start_values(), GradientType::bf16);
            for (std::size_t n = tiles; n-- > 0;)
                backward[n] = measure_run(isa, coefficients, run(n * tile, tile));
            for (std::size_t n = 0; n < tiles; ++n) {
                CHECK(bits_of(forward[n].weight_squares) == bits_of(backward[n].weight_squares));
                CHECK(bits_of(forward[n].direction_squares) ==
                      bits_of(backward[n].direction_squares));
            }
            std::size_t counted = 0;
            for (std::size_t from = 0; from < tile * tiles; from += piece)
                counted += update_run(isa, with_step(coefficients, 0.5F),
                                      run(from, std::min(piece, tile * tiles - from)));
            require_elements(found, MasterLayout::halves, planes, expected.new_elements);
            CHECK(counted == expected.without_finite_hi);
        }
}

TEST_CASE("a layer's step is the learning rate times the ratio of its norms") {
    const LambHyperParameters lamb{.learning_rate = 0.5};
    CHECK(layer_step(lamb, {16, 4}) == 0.5F * 4 / 2);
    CHECK(layer_step(lamb, {0, 4}) == 0.5F);
    CHECK(layer_step(lamb, {16, 0}) == 0.5F);
    CHECK(layer_step_without_trust(lamb) == 0.5F);
    auto clamped = lamb;
    clamped.most_weight_norm = 3;
    CHECK(layer_step(clamped, {16, 4}) == 0.5F * 3 / 2);
    clamped.least_weight_norm = 3;
    CHECK(layer_step(clamped, {1, 4}) == 0.5F * 3 / 2);
    const LarsHyperParameters lars{
        .learning_rate = 0.5, .weight_decay = 0.25, .trust_coefficient = 0.1};
    CHECK(layer_step(lars, {16, 4}) == static_cast<float>(0.5 * (0.1 * 4 / (2 + 0.25 * 4))));
    CHECK(layer_step(lars, {16, 0}) == 0.5F);
    CHECK(layer_step(lars, {0, 4}) == 0.5F);
    LayerSums sums{1, 2};
    sums += {3, 5};
    CHECK((sums.weight_squares == 4 && sums.direction_squares == 7));
}

TEST_CASE("a layer's step that cannot be is refused") {
    const double infinity = std::numeric_limits<double>::infinity();
    CHECK_THROWS_WITH(layer_step(LambHyperParameters{}, {infinity, 1}),
                      "LAMB: the weights' norm is inf and must be a finite number");
    CHECK_THROWS_WITH(layer_step(LarsHyperParameters{}, {1, std::nan("")}),
                      "LARS: the direction's norm is nan and must be a finite number");
    CHECK_THROWS_AS(layer_step(LambHyperParameters{}, {1e300, 1e-300}), std::invalid_argument);
}

TEST_CASE("layerwise hyper-parameters out of range are refused with optimizer, name and range") {
    const auto refusal = [](const LayerwiseHyperParameters& hyper) -> std::string {
        try {
            static_cast<void>(make_coefficients(hyper, 1, 1.0));
        } catch (const std::invalid_argument& error) {
            return error.what();
        }
        return "accepted";
    };
    CHECK(refusal(LambHyperParameters{.beta2 = 1}) ==
          "LAMB: beta2 is 1 and must be at least 0 and below 1");
    CHECK(refusal(LambHyperParameters{.learning_rate = -1}) ==
          "LAMB: learning_rate is -1 and must be a finite number, 0 or more");
    CHECK(refusal(LambHyperParameters{.least_weight_norm = 2, .most_weight_norm = 1}) ==
          "LAMB: most_weight_norm is 1 and must not be below least_weight_norm");
    CHECK(refusal(LambHyperParameters{.most_weight_norm = std::nan("")}).starts_with("LAMB: most"));
    CHECK(refusal(LambHyperParameters{.epsilon = -1}).starts_with("LAMB: epsilon"));
    CHECK(refusal(LarsHyperParameters{.momentum = -0.5}).starts_with("LARS: momentum"));
    CHECK(refusal(LarsHyperParameters{.trust_coefficient = std::nan("")})
              .starts_with("LARS: trust_coefficient"));
    CHECK(refusal(LarsHyperParameters{.weight_decay = -1}).starts_with("LARS: weight_decay"));
    CHECK(refusal(LarsHyperParameters{}) == "accepted");
    for (const auto& hyper : every_rule()) {
        for (const auto format : every_state_format)
            CHECK_NOTHROW(check(hyper, format));
        CHECK_THROWS_AS(make_coefficients(hyper, 0, 1.0), std::invalid_argument);
        CHECK_THROWS_AS(make_coefficients(hyper, 1, -1.0), std::invalid_argument);
    }
}

TEST_CASE("optimizers say what they need of memory and of a tensor") {
    CHECK(moment_kinds(LayerwiseHyperParameters(LambHyperParameters{})) ==
          moment_kinds(HyperParameters(AdamHyperParameters{})));
    CHECK(moment_kinds(LayerwiseHyperParameters(LarsHyperParameters{}))[0] == MomentKind::mean);
    CHECK(needs(LayerwiseHyperParameters(LambHyperParameters{})).state_planes == 2);
    CHECK(needs(LayerwiseHyperParameters(LambHyperParameters{})).passes == 2);
    CHECK(needs(LayerwiseHyperParameters(LambHyperParameters{})).gradient_passes == 2);
    CHECK(needs(LayerwiseHyperParameters(LarsHyperParameters{})).gradient_passes == 2);
    CHECK(needs(LayerwiseHyperParameters(LarsHyperParameters{})).reach == Reach::tensor);
    const auto adam = needs(HyperParameters(AdamHyperParameters{}));
    CHECK((adam.state_planes == 2 && adam.passes == 1 && adam.reach == Reach::element));
}

TEST_CASE("both passes refuse a run with planes missing; LARS is measured without its buffer") {
    std::vector<float> master(3, 1.0F), m(3), v(3), gradient(3, 1.0F);
    const auto lamb = make_coefficients(LambHyperParameters{}, 1, 1.0);
    const auto lars = make_coefficients(LarsHyperParameters{}, 1, 1.0);
    ElementwiseRun run{.elements = 3, .master = master.data()};
    run.state = {m.data(), nullptr, nullptr};
    CHECK_THROWS_WITH(measure_run(best_isa(), lamb, run),
                      "measure_run: state[1] is null and this rule keeps 2 planes of state: set "
                      "them all");
    CHECK_THROWS_WITH(update_run(best_isa(), with_step(lamb, 1), run),
                      "update_run: state[1] is null and this rule keeps 2 planes of state: set "
                      "them all");
    run.state[1] = v.data();
    CHECK_THROWS_WITH(measure_run(best_isa(), lamb, run), "measure_run: gradient is null: set it");
    CHECK_THROWS_WITH(update_run(best_isa(), with_step(lars, 1), run),
                      "update_run: gradient is null: set it");
    CHECK(master == std::vector<float>(3, 1.0F));
    run.gradient = gradient.data();
    run.state = {};
    CHECK(measure_run(best_isa(), lars, run).weight_squares == 3);
    CHECK_THROWS_WITH(update_run(best_isa(), with_step(lars, 1), run),
                      Catch::Contains("state[0] is null"));
    run.master = nullptr;
    CHECK_THROWS_AS(measure_run(best_isa(), lamb, run), std::invalid_argument);
    CHECK(update_run(best_isa(), with_step(lars, 1), ElementwiseRun{}) == 0);
    CHECK(measure_run(best_isa(), lars, ElementwiseRun{}).weight_squares == 0);
}

}  // namespace spillway::cpu_optim
