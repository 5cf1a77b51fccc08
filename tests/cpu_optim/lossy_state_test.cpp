// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/lossy_state.h"

#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "cpu_optim/elementwise_reference.h"
#include "tests/cpu_optim/elementwise_cases.h"
#include "tests/cpu_optim/elementwise_model.h"
#include "tests/cpu_optim/lossy_tensor.h"

namespace spillway::cpu_optim {
namespace {

using testing::every_placement;
using testing::has_no_gradient;
using testing::lossy_formats;
using testing::Placement;
using testing::sample_bits;
using testing::Values;
using Tensor = testing::LossyTensor;

bool accepts(const HyperParameters& hyper, StateFormat format) {
    try {
        check(hyper, format);
        return true;
    } catch (const std::invalid_argument&) {
        return false;
    }
}

/// Three steps of two tensors, one on `isa` and one by the reference: "" if they agree.
std::string compare_with_reference(Isa isa, StateFormat format, const HyperParameters& hyper,
                                   std::size_t elements, GradientType gradient, bool is_split,
                                   Placement placement, Values values) {
    Tensor found(format, elements, gradient, is_split, placement, values);
    Tensor expected(format, elements, gradient, is_split, placement, values);
    for (std::uint64_t step = 1; step <= 3; ++step) {
        found.draw_gradient(step, values);
        expected.draw_gradient(step, values);
        const auto c = make_coefficients(hyper, step, 0.5);
        const RoundingStream stream{11, 3, step};
        if (found.update(isa, c, stream) != expected.update(Isa::scalar, c, stream))
            return "counted masters differ";
    }
    if (!found.unharmed())
        return "written outside its planes";
    return found.difference(expected);
}

TEST_CASE("Lossy state: every instruction set gives the reference's bits for every rule") {
    for (const Isa isa : {Isa::avx2, Isa::avx512}) {
        if (!testing::runs_or_skips(isa))
            continue;
        for (const auto format : lossy_formats) {
            for (const auto& [name, hyper] : testing::every_rule()) {
                if (!accepts(hyper, format))
                    continue;
                INFO(isa_name(isa) << ", " << state_format_name(format) << ", " << name);
                for (const auto gradient :
                     {GradientType::fp32, GradientType::bf16, GradientType::fp16})
                    for (const bool is_split : {false, true})
                        for (const auto values : {Values::ordinary, Values::any})
                            REQUIRE(compare_with_reference(
                                        isa, format, hyper, 2 * 256 + 131, gradient, is_split,
                                        Placement::one_past_guard, values) == "");
            }
        }
    }
}

TEST_CASE("Lossy state: a square is 0 where every gradient was, and only there") {
    constexpr std::size_t elements = 4 * 256 + 100;
    const HyperParameters hyper = AdamHyperParameters{};
    for (const auto format : lossy_formats)
        for (const Isa isa : supported_isas()) {
            INFO(isa_name(isa) << ", " << state_format_name(format));
            REQUIRE(compare_with_reference(isa, format, hyper, elements, GradientType::fp32, false,
                                           Placement::at_first_guard, Values::some_zero) == "");
            Tensor tensor(format, elements, GradientType::fp32, false, Placement::at_first_guard,
                          Values::some_zero);
            for (std::uint64_t step = 1; step <= 3; ++step)
                REQUIRE(tensor.update(isa, make_coefficients(hyper, step, 1.0), {2, 3, step}) == 0);
            for (std::size_t i = 0; i < elements; ++i)
                REQUIRE((tensor.state(hyper, 1, i) == 0) == has_no_gradient(i));
        }
}

TEST_CASE("Lossy state: every length between guard pages gives the reference's bits") {
    const Isa isa = best_isa();
    for (const auto format : lossy_formats) {
        for (const std::size_t elements : testing::awkward_lengths()) {
            if (elements > 100'000)
                continue;
            for (const auto placement : every_placement) {
                INFO(state_format_name(format) << ", " << elements << " elements");
                REQUIRE(compare_with_reference(isa, format, AdamHyperParameters{}, elements,
                                               GradientType::fp32, elements % 2 == 0, placement,
                                               Values::any) == "");
            }
        }
    }
}

TEST_CASE("Lossy state: a tensor cut in runs is updated as whole") {
    constexpr std::size_t elements = 9 * 256 + 77;
    for (const auto format : lossy_formats) {
        Tensor whole(format, elements, GradientType::bf16, true, Placement::at_first_guard,
                     Values::ordinary);
        Tensor cut(format, elements, GradientType::bf16, true, Placement::at_first_guard,
                   Values::ordinary);
        for (std::uint64_t step = 1; step <= 20; ++step) {
            const auto c = make_coefficients(AdamHyperParameters{}, step, 1.0);
            const RoundingStream stream{1, 2, step};
            const Isa isa = step % 2 == 0 ? best_isa() : Isa::scalar;
            const std::size_t grain = format == StateFormat::int8 ? block_elements : 1;
            static_cast<void>(whole.update(best_isa(), c, stream));
            for (std::size_t begin = 0; begin < elements;) {
                const std::size_t wanted = (1 + sample_bits(step, begin) % 600 / grain) * grain;
                const std::size_t end = std::min(elements, begin + wanted);
                static_cast<void>(cut.update(isa, c, stream, begin, end));
                begin = end;
            }
        }
        REQUIRE(cut.difference(whole) == "");
    }
}

/// The distance between the neighbours of a value in a format, or more.
double step_of(StateFormat format, MomentKind kind, double value, std::uint8_t scale) {
    if (format == StateFormat::bf16)
        return (kind == MomentKind::mean ? 0x1p-8 : 0x1p-7) * std::abs(value) + 1e-37;
    const double bias = double{std::bit_cast<float>(bias_bits(scale))};
    return (std::abs(value) + bias) / 16;
}

TEST_CASE("Lossy state: 200 steps stay within the bound of the arithmetic and one rounding") {
    constexpr std::size_t elements = 3 * 256 + 40;
    for (const auto format : lossy_formats) {
        for (const auto& [name, hyper] : testing::every_rule()) {
            if (!accepts(hyper, format))
                continue;
            INFO(state_format_name(format) << ", " << name);
            Tensor tensor(format, elements, GradientType::fp32, false, Placement::at_first_guard,
                          Values::ordinary);
            for (std::uint64_t step = 1; step <= 200; ++step) {
                tensor.draw_gradient(step, Values::ordinary);
                std::vector<ElementwiseElement> before;
                for (std::size_t i = 0; i < elements; i += 7)
                    before.push_back(tensor.element(hyper, i));
                static_cast<void>(
                    tensor.update(best_isa(), make_coefficients(hyper, step, 1.0), {8, 1, step}));
                for (std::size_t i = 0; i < elements; i += 7) {
                    testing::ElementwiseModel model(hyper, before[i / 7]);
                    model.step(step, double{tensor.gradient(i)}, 1.0);
                    const auto found = tensor.element(hyper, i);
                    REQUIRE(testing::distance(double{found.master}, model.w()) <= 1);
                    for (std::size_t plane = 0; plane < state_planes(hyper); ++plane) {
                        const auto& exact = model.state(plane);
                        const auto kind = moment_kinds(hyper)[plane];
                        const double step_size =
                            step_of(format, kind, exact.value, tensor.scale(plane, i));
                        REQUIRE(std::abs(double{found.state[plane]} - exact.value) <=
                                1.01 * step_size + exact.error);
                        if (kind == MomentKind::square && exact.value > 1e-37)
                            REQUIRE(found.state[plane] > 0);
                    }
                }
            }
        }
    }
}

TEST_CASE("Lossy state: what is not finite stays visible and is counted") {
    for (const auto format : lossy_formats) {
        for (const Isa isa : supported_isas()) {
            Tensor tensor(format, 512, GradientType::fp32, false, Placement::at_first_guard,
                          Values::ordinary);
            const HyperParameters hyper = AdamHyperParameters{};
            const auto infinite = make_coefficients(hyper, 1, 3e38);
            REQUIRE(tensor.update(isa, infinite, {1, 1, 1}) > 0);
            std::size_t nonfinite = 0;
            for (std::size_t i = 0; i < 512; ++i)
                nonfinite += std::isfinite(tensor.state(hyper, 1, i)) ? 0u : 1u;
            REQUIRE(nonfinite > 0);
        }
    }
}

TEST_CASE("Lossy state: what cannot be is refused by name before anything changes") {
    const AdamHyperParameters amsgrad{.amsgrad = Amsgrad::on};
    REQUIRE_THROWS_WITH(check(amsgrad, StateFormat::int8), Catch::Contains("AdamW") &&
                                                               Catch::Contains("int8") &&
                                                               Catch::Contains("amsgrad"));
    REQUIRE_THROWS_WITH(check(RmspropHyperParameters{.centred = Centred::on}, StateFormat::bf16),
                        Catch::Contains("RMSprop") && Catch::Contains("bf16"));
    REQUIRE_NOTHROW(check(amsgrad, StateFormat::fp32));
    REQUIRE_THROWS_WITH(parse_state_format("fp8"), Catch::Contains("fp8"));
    Tensor tensor(StateFormat::int8, 600, GradientType::fp32, false, Placement::at_first_guard,
                  Values::ordinary);
    const auto c = make_coefficients(AdamHyperParameters{}, 1, 1.0);
    REQUIRE_THROWS_WITH(tensor.update(Isa::scalar, c, {}, 100, 300), Catch::Contains("100"));
    REQUIRE_THROWS_AS(tensor.update(Isa::scalar, make_coefficients(amsgrad, 1, 1.0), {}),
                      std::invalid_argument);
    Int8Run run;
    run.elements = 256;
    REQUIRE_THROWS_AS(static_cast<void>(update_run(Isa::scalar, c, {}, run)),
                      std::invalid_argument);
}

}  // namespace
}  // namespace spillway::cpu_optim
