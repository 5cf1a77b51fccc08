// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
//
// LAMB and LARS over state in bf16 and int8: every instruction set against the reference, and the
// reference against its two passes spelled out over what the state decodes to.
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "cpu_optim/layerwise.h"
#include "cpu_optim/layerwise_reference.h"
#include "tests/cpu_optim/lossy_tensor.h"

namespace spillway::cpu_optim {
namespace {

using testing::lossy_formats;
using testing::LossyTensor;
using testing::Placement;
using testing::Values;

std::vector<LayerwiseHyperParameters> every_rule() {
    return {LambHyperParameters{},
            LambHyperParameters{
                .learning_rate = 0.02, .beta1 = 0.8, .weight_decay = 0, .most_weight_norm = 3},
            LarsHyperParameters{.trust_coefficient = 1},
            LarsHyperParameters{.momentum = 0, .objective = Objective::maximise}};
}

std::uint64_t bits_of(double value) {
    return std::bit_cast<std::uint64_t>(std::isnan(value) ? std::numeric_limits<double>::quiet_NaN()
                                                          : value);
}

float step_of(const LayerwiseHyperParameters& hyper, const LayerSums& sums) {
    return std::isfinite(sums.weight_squares) && std::isfinite(sums.direction_squares)
               ? layer_step(hyper, sums)
               : std::numeric_limits<float>::quiet_NaN();
}

/// Three steps on `isa` and by the reference: "" if sums, weights and state agree.
std::string compare_with_reference(Isa isa, StateFormat format,
                                   const LayerwiseHyperParameters& hyper, std::size_t elements,
                                   GradientType gradient, bool is_split, Values values) {
    constexpr auto placement = Placement::one_past_guard;
    LossyTensor found(format, elements, gradient, is_split, placement, values);
    LossyTensor expected(format, elements, gradient, is_split, placement, values);
    for (std::uint64_t step = 1; step <= 3; ++step) {
        found.draw_gradient(step, values);
        expected.draw_gradient(step, values);
        const auto c = make_coefficients(hyper, step, 0.5);
        const RoundingStream stream{11, 3, step};
        const auto sums = found.measure(isa, c, 0, elements);
        const auto expected_sums = expected.measure(Isa::scalar, c, 0, elements);
        if (bits_of(sums.weight_squares) != bits_of(expected_sums.weight_squares) ||
            bits_of(sums.direction_squares) != bits_of(expected_sums.direction_squares))
            return "sums differ";
        const auto moved = with_step(c, step_of(hyper, sums));
        if (found.update(isa, moved, stream) != expected.update(Isa::scalar, moved, stream))
            return "counted masters differ";
    }
    if (!found.unharmed())
        return "written outside its planes";
    return found.difference(expected);
}

/// What is stored of a new value of one element, decoded; in int8 as far as the block's scale says.
bool is_stored_as(StateFormat format, MomentKind kind, float value, float stored,
                  std::uint8_t scale, std::uint32_t random) {
    if (format == StateFormat::int8)
        return stored ==
               decode(kind, encode(kind, value, scale, rounding_term(kind, random)), scale);
    return stored == from_bf16(kind == MomentKind::mean ? to_bf16(value) : to_bf16(value, random));
}

}  // namespace

TEST_CASE("lossy layerwise: every instruction set gives the reference's bits for every rule") {
    for (const Isa isa : {Isa::avx2, Isa::avx512}) {
        if (!testing::runs_or_skips(isa))
            continue;
        for (const auto format : lossy_formats)
            for (const auto& hyper : every_rule())
                for (const auto gradient :
                     {GradientType::fp32, GradientType::bf16, GradientType::fp16})
                    for (const bool is_split : {false, true})
                        for (const auto values : {Values::ordinary, Values::any})
                            for (const std::size_t elements : {1U, 17U, 256U, 2U * 256 + 131}) {
                                INFO(isa_name(isa) << ", " << state_format_name(format) << ", "
                                                   << optimizer_name(hyper) << ", " << elements);
                                REQUIRE(compare_with_reference(isa, format, hyper, elements,
                                                               gradient, is_split, values) == "");
                            }
    }
}

TEST_CASE("lossy layerwise: a step is what both passes make of the state as it is stored") {
    constexpr std::size_t elements = 256 + 77;
    for (const auto format : lossy_formats)
        for (const auto& hyper : every_rule()) {
            INFO(state_format_name(format) << ", " << optimizer_name(hyper));
            const auto planes = needs(hyper).state_planes;
            LossyTensor tensor(format, elements, GradientType::bf16, false,
                               Placement::at_first_guard, Values::ordinary);
            for (std::uint64_t step = 1; step <= 5; ++step) {
                tensor.draw_gradient(step, Values::ordinary);
                const auto c = make_coefficients(hyper, step, 1.0);
                std::vector<ElementwiseElement> made;
                double squares[2][16] = {};
                for (std::size_t i = 0; i < elements; ++i)
                    std::visit(
                        [&](const auto& rule) {
                            const auto old = tensor.element(hyper, i);
                            const auto [element, direction] =
                                prepared(rule, old, tensor.gradient(i));
                            made.push_back(element);
                            squares[0][i % 16] += double{old.master} * double{old.master};
                            squares[1][i % 16] += double{direction} * double{direction};
                        },
                        c.rule);
                for (auto& lanes : squares)
                    for (std::size_t half = 8; half > 0; half /= 2)
                        for (std::size_t lane = 0; lane < half; ++lane)
                            lanes[lane] += lanes[lane + half];
                const auto sums = tensor.measure(best_isa(), c, 0, elements);
                REQUIRE(sums.weight_squares == squares[0][0]);
                REQUIRE(sums.direction_squares == squares[1][0]);
                const float length = layer_step(hyper, sums);
                const RoundingStream stream{7, 1, step};
                REQUIRE(tensor.update(best_isa(), with_step(c, length), stream) == 0);
                for (std::size_t i = 0; i < elements; ++i) {
                    const auto expected = std::visit(
                        [&](const auto& rule) {
                            return applied(rule, length, made[i], tensor.gradient(i));
                        },
                        c.rule);
                    const auto found = tensor.element(hyper, i);
                    REQUIRE(found.master == expected.master);
                    for (std::size_t plane = 0; plane < planes; ++plane)
                        REQUIRE(is_stored_as(format, moment_kinds(hyper)[plane],
                                             expected.state[plane], found.state[plane],
                                             tensor.scale(plane, i),
                                             random_bits(rounding_key(stream, i), i)));
                }
            }
        }
}

TEST_CASE("lossy layerwise: measuring changes nothing, and a tensor cut in runs moves as whole") {
    constexpr std::size_t elements = 9 * 256 + 77;
    for (const auto format : lossy_formats)
        for (const auto& hyper : every_rule()) {
            const auto made = [&] {
                return LossyTensor(format, elements, GradientType::bf16, true,
                                   Placement::at_first_guard, Values::ordinary);
            };
            auto whole = made();
            auto cut = made();
            const auto untouched = made();
            static_cast<void>(
                whole.measure(best_isa(), make_coefficients(hyper, 1, 1.0), 0, elements));
            REQUIRE(whole.difference(untouched) == "");
            for (std::uint64_t step = 1; step <= 5; ++step) {
                const auto moved = with_step(make_coefficients(hyper, step, 1.0), 0.01F);
                const RoundingStream stream{1, 2, step};
                static_cast<void>(whole.update(best_isa(), moved, stream));
                const Isa isa = step % 2 == 0 ? best_isa() : Isa::scalar;
                for (std::size_t begin = 0; begin < elements;) {
                    const auto blocks = 1 + testing::sample_bits(step, begin) % 3;
                    const auto end = std::min(elements, begin + blocks * block_elements);
                    static_cast<void>(cut.update(isa, moved, stream, begin, end));
                    begin = end;
                }
            }
            REQUIRE(cut.difference(whole) == "");
        }
}

TEST_CASE("lossy layerwise: a run with planes missing, or that starts inside a block, is refused") {
    const auto lamb = make_coefficients(LambHyperParameters{}, 1, 1.0);
    const auto lars = make_coefficients(LarsHyperParameters{}, 1, 1.0);
    std::vector<float> master(256, 1.0F), gradient(256, 1.0F);
    std::vector<std::uint8_t> codes(256);
    Int8Run run;
    run.elements = 256;
    run.master = master.data();
    CHECK_THROWS_WITH(measure_run(best_isa(), lars, run), "measure_run: gradient is null: set it");
    run.gradient = gradient.data();
    CHECK(measure_run(best_isa(), lars, run).direction_squares == 256);
    CHECK_THROWS_WITH(measure_run(best_isa(), lamb, run), Catch::Contains("codes[0] is null"));
    run.codes = {codes.data(), codes.data()};
    CHECK_THROWS_WITH(measure_run(best_isa(), lamb, run), Catch::Contains("scales[0] is null"));
    CHECK_THROWS_WITH(update_run(best_isa(), with_step(lars, 1), {}, run),
                      Catch::Contains("scales[0] is null"));
    run.first_element = 100;
    CHECK_THROWS_WITH(measure_run(best_isa(), lars, run), Catch::Contains("element 100"));
    Bf16Run halves;
    halves.elements = 1;
    CHECK_THROWS_AS(measure_run(best_isa(), lamb, halves), std::invalid_argument);
    halves.master = master.data();
    CHECK_THROWS_WITH(measure_run(best_isa(), lamb, halves), Catch::Contains("state[0] is null"));
}

}  // namespace spillway::cpu_optim
