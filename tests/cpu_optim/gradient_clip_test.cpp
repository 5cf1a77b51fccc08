// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/gradient_clip.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include <catch2/catch.hpp>

#include "cpu_optim/float_formats.h"
#include "tests/cpu_optim/guarded_buffer.h"
#include "tests/cpu_optim/sample_values.h"

namespace spillway::cpu_optim {
namespace {

using testing::GuardedBuffer;
using testing::Placement;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float bounds[] = {0.0F,    0x1p-130F, 0x1p-24F, 0.3F,    1.0F,
                            1000.1F, 70000.0F,  3.2e38F,  infinity};

/// torch's clamp, on values: NaN stays.
float clamped_float(float value, float most) {
    return std::isnan(value) ? value : std::clamp(value, -most, most);
}

std::uint16_t clamped_half(std::uint16_t bits, GradientType type, float most) {
    const bool is_bf16 = type == GradientType::bf16;
    const float value = is_bf16 ? from_bf16(bits) : from_fp16(bits);
    if (std::isnan(value))
        return bits;
    const float clamped = clamped_float(value, most);
    if (clamped == value)
        return bits;
    return is_bf16 ? to_bf16(clamped) : to_fp16(clamped);
}

/// Every length at every place; expected(value) of each element.
template <typename T, class Sample, class Expected>
void require_clamped(Isa isa, GradientType type, float most, const Sample& sample,
                     const Expected& expected) {
    for (const std::size_t length : testing::awkward_lengths())
        for (const Placement placement : testing::every_placement) {
            if (length > 4097)
                continue;
            CAPTURE(most, length, placement);
            GuardedBuffer<T> gradient(length, placement);
            std::vector<T> wanted(length);
            std::uint64_t changed = 0;
            for (std::size_t i = 0; i < length; ++i) {
                gradient.span()[i] = sample(i);
                wanted[i] = expected(sample(i));
                changed += std::bit_cast<std::array<std::byte, sizeof(T)>>(wanted[i]) !=
                                   std::bit_cast<std::array<std::byte, sizeof(T)>>(sample(i))
                               ? 1u
                               : 0u;
            }
            REQUIRE(clip_values(isa, gradient.span().data(), type, length, most) == changed);
            REQUIRE(testing::first_difference<T>(gradient.span(), wanted) == length);
            REQUIRE(gradient.unharmed());
        }
}

}  // namespace

TEMPLATE_TEST_CASE_SIG("fp32 gradients are clamped as torch clamps them", "", ((Isa isa), isa),
                       Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    for (const float most : bounds)
        require_clamped<float>(
            isa, GradientType::fp32, most, [](auto i) { return testing::sample_any(64, i); },
            [most](float value) { return clamped_float(value, most); });
}

TEMPLATE_TEST_CASE_SIG("all gradients in 16 bits are clamped to the bound rounded to nearest", "",
                       ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    constexpr std::size_t count = 0x10000;
    for (const GradientType type : {GradientType::bf16, GradientType::fp16})
        for (const float most : bounds) {
            std::vector<std::uint16_t> found(count), expected(count);
            for (std::size_t i = 0; i < count; ++i) {
                found[i] = static_cast<std::uint16_t>(i);
                expected[i] = clamped_half(found[i], type, most);
            }
            CAPTURE(type, most);
            clip_values(isa, found.data(), type, count, most);
            REQUIRE(testing::first_difference<std::uint16_t>(found, expected) == count);
        }
    require_clamped<std::uint16_t>(
        isa, GradientType::fp16, 0.3F,
        [](auto i) { return static_cast<std::uint16_t>(testing::sample_bits(65, i)); },
        [](std::uint16_t bits) { return clamped_half(bits, GradientType::fp16, 0.3F); });
}

TEST_CASE("a clip coefficient is torch's, of the global norm or of a tensor's own") {
    CHECK(clip_coefficient(1, 4, 1) == 1 / (2 + 1e-6));
    CHECK(clip_coefficient(3, 4, 1) == 1);
    CHECK(clip_coefficient(1, 4 * 65536.0 * 65536.0, 1 / 65536.0) == 1 / (2 + 1e-6));
    CHECK(clip_coefficient(1, 4, -1) == 1 / (2 + 1e-6));
    CHECK(clip_coefficient(1, 0, 1) == 1);
    CHECK(clip_coefficient(infinity, 4, 1) == 1);
    CHECK(clip_coefficient(1, std::nan(""), 1) == 1);
    CHECK(clip_coefficient(1, std::numeric_limits<double>::infinity(), 1) == 0);
}

TEST_CASE("bounds out of range are refused with the value found") {
    CHECK_THROWS_WITH(clip_coefficient(0, 1, 1),
                      "clip_coefficient: most_norm is 0 and must be above 0");
    CHECK_THROWS_AS(clip_coefficient(std::nan(""), 1, 1), std::invalid_argument);
    float gradient = 1;
    CHECK_THROWS_WITH(clip_values(best_isa(), &gradient, GradientType::fp32, 1, -1),
                      "clip_values: most is -1 and must be 0 or more");
    CHECK_THROWS_AS(clip_values(best_isa(), &gradient, GradientType::fp32, 1, std::nanf("")),
                    std::invalid_argument);
    CHECK(gradient == 1);
}

}  // namespace spillway::cpu_optim
