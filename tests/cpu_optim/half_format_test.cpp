// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/half_format.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include <catch2/catch.hpp>

#include "cpu_optim/float_formats.h"
#include "tests/cpu_optim/guarded_buffer.h"
#include "tests/cpu_optim/sample_values.h"

namespace spillway::cpu_optim {
namespace {

using testing::GuardedBuffer;
using testing::Placement;

constexpr HalfFormat every_format[] = {HalfFormat::bf16, HalfFormat::fp16};

float widened(HalfFormat format, std::uint16_t half) {
    const float value = format == HalfFormat::bf16 ? from_bf16(half) : from_fp16(half);
    return std::isnan(value) ? std::numeric_limits<float>::quiet_NaN() : value;
}
std::uint16_t narrowed_half(HalfFormat format, float value) {
    return format == HalfFormat::bf16 ? to_bf16(value) : to_fp16(value);
}

/// Every half, the float half way to the next one, that float's neighbours, and awkward ones.
std::vector<float> floats_to_narrow(HalfFormat format) {
    std::vector<float> values;
    for (unsigned half = 0; half <= 0xFFFF; ++half) {
        const auto bits =
            std::bit_cast<std::uint32_t>(widened(format, static_cast<std::uint16_t>(half)));
        const std::uint32_t middle = bits + (format == HalfFormat::bf16 ? 0x8000u : 0x1000u);
        for (const std::uint32_t near : {bits, middle - 1, middle, middle + 1})
            values.push_back(std::bit_cast<float>(near));
    }
    for (std::uint64_t n = 0; n < 100'000; ++n) {
        values.push_back(testing::sample_any(66, n));
        values.push_back(testing::sample_magnitude(67, n, 1e-9, 1e-4));  // fp16's subnormals
    }
    return values;
}

}  // namespace

TEMPLATE_TEST_CASE_SIG("all halves are widened with the scalar function's bits", "",
                       ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    constexpr std::size_t count = 0x10000;
    for (const HalfFormat format : every_format) {
        std::vector<std::uint16_t> halves(count);
        std::vector<float> found(count), expected(count);
        for (std::size_t i = 0; i < count; ++i) {
            halves[i] = static_cast<std::uint16_t>(i);
            expected[i] = widened(format, halves[i]);
        }
        widen(isa, format, halves.data(), found.data(), count);
        CHECK(testing::first_difference<float>(found, expected) == count);
    }
}

TEMPLATE_TEST_CASE_SIG("floats are narrowed with the scalar function's bits, and counted", "",
                       ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    for (const HalfFormat format : every_format) {
        const std::vector<float> values = floats_to_narrow(format);
        std::vector<std::uint16_t> found(values.size()), expected(values.size());
        std::size_t nonfinite = 0;
        for (std::size_t i = 0; i < values.size(); ++i) {
            expected[i] = narrowed_half(format, values[i]);
            nonfinite += std::isfinite(widened(format, expected[i])) ? 0u : 1u;
        }
        CHECK(narrow(isa, format, values.data(), found.data(), values.size()) == nonfinite);
        CHECK(testing::first_difference<std::uint16_t>(found, expected) == values.size());
        CHECK(nonfinite > 0);
    }
}

TEMPLATE_TEST_CASE_SIG("conversions touch their run alone, whatever its length and place", "",
                       ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    for (const HalfFormat format : every_format)
        for (std::size_t length = 0; length <= 67; ++length)
            for (const Placement placement : testing::every_placement) {
                GuardedBuffer<float> values(length, placement), back(length, placement);
                GuardedBuffer<std::uint16_t> halves(length, placement);
                std::vector<std::uint16_t> expected(length);
                std::vector<float> expected_back(length);
                for (std::size_t i = 0; i < length; ++i) {
                    values.span()[i] = testing::sample_any(68, i);
                    expected[i] = narrowed_half(format, values.span()[i]);
                    expected_back[i] = widened(format, expected[i]);
                }
                narrow(isa, format, values.span().data(), halves.span().data(), length);
                widen(isa, format, halves.span().data(), back.span().data(), length);
                REQUIRE(testing::first_difference<std::uint16_t>(halves.span(), expected) ==
                        length);
                REQUIRE(testing::first_difference<float>(back.span(), expected_back) == length);
                REQUIRE((values.unharmed() && halves.unharmed() && back.unharmed()));
            }
}

}  // namespace spillway::cpu_optim
