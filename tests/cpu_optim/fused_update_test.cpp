// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/fused_update.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include <catch2/catch.hpp>

#include "cpu_optim/float_formats.h"
#include "tests/cpu_optim/elementwise_cases.h"
#include "tests/cpu_optim/elementwise_planes.h"

namespace spillway::cpu_optim {
namespace {

using testing::every_gradient_type;
using testing::every_layout;
using testing::Expected;
using testing::GuardedBuffer;
using testing::MasterLayout;
using testing::Placement;
using testing::Planes;
using testing::StartValues;

constexpr HalfFormat every_format[] = {HalfFormat::bf16, HalfFormat::fp16};
/// Around vectors and around blocks of an update.
constexpr std::size_t lengths[] = {0, 1, 7, 16, 33, 1023, 1024, 1025, 2100};

const StartValues& start_values() {
    static const StartValues values(2100);
    return values;
}
float start_average(std::size_t i) {
    return testing::sample_any(69, i);
}

float from_half(HalfFormat format, std::uint16_t half) {
    return format == HalfFormat::bf16 ? from_bf16(half) : from_fp16(half);
}
std::uint16_t to_half(HalfFormat format, float value) {
    return format == HalfFormat::bf16 ? to_bf16(value) : to_fp16(value);
}

/// The planes beside a run's own, between guard pages.
struct Beside {
    Beside(std::size_t elements, Placement placement)
        : half(elements, placement), average(elements, placement) {}

    void fill() const {
        for (std::size_t i = 0; i < average.span().size(); ++i)
            average.span()[i] = start_average(i);
    }
    [[nodiscard]] FusedRun run(const ElementwiseRun& run, HalfFormat format,
                               const AverageCoefficients& coefficients, std::size_t from) const {
        return {.run = run,
                .half = half.span().data() + from,
                .half_format = format,
                .average = average.span().data() + from,
                .average_coefficients = coefficients};
    }
    [[nodiscard]] bool unharmed() const { return half.unharmed() && average.unharmed(); }

    GuardedBuffer<std::uint16_t> half;
    GuardedBuffer<float> average;
};

std::size_t differing(std::size_t count, const auto& is_same) {
    std::size_t different = 0;
    for (std::size_t i = 0; i < count; ++i)
        different += is_same(i) ? 0u : 1u;
    return different;
}

bool same_bits(float a, float b) {
    return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

/// body(first, elements) of the two parts of a run cut in the middle.
void in_two(std::size_t length, const auto& body) {
    const std::size_t cut = length / 2;
    body(std::size_t{0}, cut);
    body(cut, length - cut);
}

const AverageCoefficients moving = make_average_coefficients(EmaParameters{.decay = 0.9}, 4);

void require_masters(Isa isa, const ElementwiseCoefficients& c, std::size_t planes,
                     const Expected& expected, Planes& found, const Beside& beside,
                     MasterLayout layout, GradientType type, HalfFormat format) {
    const std::size_t length = expected.elements.size();
    found.fill(start_values(), type);
    beside.fill();
    std::size_t counted = 0;
    in_two(length, [&](std::size_t from, std::size_t elements) {
        const auto run = found.run(layout, type, planes, from, elements);
        counted += update_fused(isa, c, beside.run(run, format, moving, from));
    });
    REQUIRE(expected.first_difference(found, layout, planes) == length);
    std::size_t nonfinite = 0;
    REQUIRE(differing(length, [&](std::size_t i) {
                const float master = expected.elements[i].master;
                const std::uint16_t half = to_half(format, master);
                const bool is_stored =
                    layout == MasterLayout::whole ? std::isfinite(master) : has_finite_hi(master);
                nonfinite += is_stored && std::isfinite(from_half(format, half)) ? 0u : 1u;
                return beside.half.span()[i] == half &&
                       same_bits(beside.average.span()[i],
                                 averaged(moving, start_average(i), master));
            }) == 0);
    REQUIRE(counted == nonfinite);
    REQUIRE((found.unharmed() && beside.unharmed()));
}

/// The weights are halves: an element is widened, updated and rounded.
void require_halves(Isa isa, const ElementwiseCoefficients& c, std::size_t planes, Planes& found,
                    const Beside& beside, std::size_t length, GradientType type,
                    HalfFormat format) {
    const StartValues& start = start_values();
    found.fill(start, type);
    beside.fill();
    for (std::size_t i = 0; i < length; ++i)
        beside.half.span()[i] = to_half(format, start.master[i]);
    std::size_t counted = 0;
    in_two(length, [&](std::size_t from, std::size_t elements) {
        auto run = found.run(MasterLayout::whole, type, planes, from, elements);
        run.master = nullptr;
        counted += update_fused(isa, c, beside.run(run, format, moving, from));
    });
    std::size_t nonfinite = 0;
    REQUIRE(differing(length, [&](std::size_t i) {
                const ElementwiseElement old{
                    from_half(format, to_half(format, start.master[i])),
                    {start.state[0][i], start.state[1][i], start.state[2][i]}};
                const float g = detail::gradient_element(start.gradient(type), type, i);
                const auto element =
                    std::visit([&](const auto& rule) { return updated(rule, old, g); }, c.rule);
                const std::uint16_t half = to_half(format, element.master);
                const float weight = from_half(format, half);
                nonfinite += std::isfinite(weight) ? 0u : 1u;
                bool is_same =
                    beside.half.span()[i] == half &&
                    same_bits(beside.average.span()[i], averaged(moving, start_average(i), weight));
                for (std::size_t plane = 0; plane < planes; ++plane)
                    is_same = is_same && same_bits(found.state(plane, i), element.state[plane]);
                return is_same;
            }) == 0);
    REQUIRE(counted == nonfinite);
    REQUIRE((found.unharmed() && beside.unharmed()));
}

}  // namespace

TEMPLATE_TEST_CASE_SIG("a fused update has the bits of update, copy and average one by one", "",
                       ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    for (const std::size_t length : lengths) {
        Planes planes(length, Placement::one_past_guard);
        const Beside beside(length, Placement::at_second_guard);
        for (const auto& [name, hyper] : testing::every_rule()) {
            const auto c = make_coefficients(hyper, 2, 0.37);
            for (const GradientType type : every_gradient_type) {
                const Expected expected(c, start_values(), type, length);
                for (const MasterLayout layout : every_layout)
                    for (const HalfFormat format : every_format) {
                        CAPTURE(length, name, type, layout, format);
                        require_masters(isa, c, state_planes(hyper), expected, planes, beside,
                                        layout, type, format);
                    }
            }
        }
    }
}

TEMPLATE_TEST_CASE_SIG("weights in 16 bits have the bits of the reference, rounded", "",
                       ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    for (const std::size_t length : lengths) {
        Planes planes(length, Placement::at_second_guard);
        const Beside beside(length, Placement::one_past_guard);
        for (const auto& [name, hyper] : testing::every_rule())
            for (const GradientType type : every_gradient_type)
                for (const HalfFormat format : every_format) {
                    CAPTURE(length, name, type, format);
                    require_halves(isa, make_coefficients(hyper, 3, 1.0), state_planes(hyper),
                                   planes, beside, length, type, format);
                }
    }
}

TEMPLATE_TEST_CASE_SIG("planes that are not set are left out, and an average may start", "",
                       ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    constexpr std::size_t length = 1030;
    std::vector<float> master(length, 1.0F), gradient(length, 0.5F);
    std::vector<float> average(length, std::nanf(""));
    std::vector<std::uint16_t> half(length, 0x3C00);  // 1 in fp16
    const auto c = make_coefficients(SgdHyperParameters{.learning_rate = 0.5}, 1, 1.0);
    ElementwiseRun run{.elements = length, .master = master.data()};
    run.gradient = gradient.data();
    CHECK(update_fused(isa, c, {.run = run}) == 0);
    CHECK(master == std::vector<float>(length, 0.75F));
    const auto starts = make_average_coefficients(SwaParameters{}, 0);
    CHECK(update_fused(isa, c,
                       {.run = run, .average = average.data(), .average_coefficients = starts}) ==
          0);
    CHECK(average == std::vector<float>(length, 0.5F));
    run.master = nullptr;
    CHECK(update_fused(isa, c,
                       {.run = run, .half = half.data(), .half_format = HalfFormat::fp16}) == 0);
    CHECK(half == std::vector<std::uint16_t>(length, 0x3A00));  // 0.75
}

TEMPLATE_TEST_CASE_SIG("a weight that only fp16 cannot hold is counted once", "", ((Isa isa), isa),
                       Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    std::vector<float> master(100, 1.0F), gradient(100, 0.0F);
    master[3] = 65520.0F;
    master[50] = 65519.0F;
    master[99] = std::numeric_limits<float>::infinity();
    std::vector<std::uint16_t> half(100);
    ElementwiseRun run{.elements = 100, .master = master.data()};
    run.gradient = gradient.data();
    FusedRun fused{.run = run, .half = half.data(), .half_format = HalfFormat::fp16};
    const auto c = make_coefficients(SgdHyperParameters{}, 1, 1.0);
    CHECK(update_fused(isa, c, fused) == 2);
    CHECK(half[50] == 0x7BFF);
    fused.half_format = HalfFormat::bf16;
    CHECK(update_fused(isa, c, fused) == 1);
}

TEST_CASE("a fused update refuses missing planes before it changes anything") {
    std::vector<float> master(3, 1.0F), gradient(3, 1.0F);
    const auto c = make_coefficients(AdamHyperParameters{}, 1, 1.0);
    ElementwiseRun run{.elements = 3, .master = master.data()};
    run.gradient = gradient.data();
    CHECK_THROWS_WITH(update_fused(best_isa(), c, {.run = run}),
                      "update_fused: state[0] is null and this rule keeps 2 planes of state: set "
                      "them all");
    run.master = nullptr;
    CHECK_THROWS_WITH(update_fused(best_isa(), c, {.run = run}),
                      "update_fused: master is null, weight is null, residue is null: set either "
                      "master, or weight and residue");
    CHECK(update_fused(best_isa(), c, {}) == 0);
    CHECK(master == std::vector<float>(3, 1.0F));
}

}  // namespace spillway::cpu_optim
