// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/float_formats.h"

#include <bit>
#include <cmath>
#include <limits>

#include <catch2/catch.hpp>

namespace spillway::cpu_optim {
namespace {

/// The value of a binary format by its definition: sign, biased exponent, fraction.
double by_definition(unsigned bits, int exponent_bits, int fraction_bits) {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const auto fraction = static_cast<int>(bits & ((1u << fraction_bits) - 1));
    const auto exponent = static_cast<int>((bits >> fraction_bits) & ((1u << exponent_bits) - 1));
    const double sign = (bits & 0x8000u) != 0 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1)
        return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                             : sign * std::numeric_limits<double>::infinity();
    if (exponent == 0)
        return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
    return sign * std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
}

bool is_same(double found, double expected) {
    if (std::isnan(expected))
        return std::isnan(found);
    return std::bit_cast<std::uint64_t>(found) == std::bit_cast<std::uint64_t>(expected);
}

}  // namespace

TEST_CASE("all 65536 values of both 16-bit formats are widened exactly") {
    unsigned faults_bf16 = 0, faults_fp16 = 0;
    for (unsigned bits = 0; bits <= 0xFFFF; ++bits) {
        const auto half = static_cast<std::uint16_t>(bits);
        faults_bf16 += is_same(from_bf16(half), by_definition(bits, 8, 7)) ? 0u : 1u;
        faults_fp16 += is_same(from_fp16(half), by_definition(bits, 5, 10)) ? 0u : 1u;
    }
    REQUIRE(faults_bf16 == 0);
    REQUIRE(faults_fp16 == 0);
}

/// All values of a format, the float half way to the next one, and the floats beside that one.
template <class From, class To>
unsigned narrowing_faults(const From& from, const To& to, unsigned infinity) {
    unsigned faults = 0;
    const auto expect = [&](double value, unsigned expected) {
        faults += to(static_cast<float>(value)) == expected ? 0u : 1u;
        faults += to(static_cast<float>(-value)) == (expected | 0x8000u) ? 0u : 1u;
    };
    for (unsigned half = 0; half < infinity; ++half) {
        const double value = from(static_cast<std::uint16_t>(half));
        const double step = half + 1 < infinity
                                ? from(static_cast<std::uint16_t>(half + 1)) - value
                                : value - from(static_cast<std::uint16_t>(half - 1));
        const auto middle = static_cast<float>(value + step / 2);
        const float infinite = std::numeric_limits<float>::infinity();
        expect(value, half);
        expect(middle, half % 2 == 0 ? half : half + 1);
        expect(std::nextafter(middle, 0.0F), half);
        expect(std::nextafter(middle, infinite), half + 1);
    }
    expect(std::numeric_limits<double>::infinity(), infinity);
    expect(std::numeric_limits<float>::max(), infinity);
    return faults;
}

TEST_CASE("floats are narrowed to nearest, ties to even, and overflow to infinity") {
    CHECK(narrowing_faults(from_bf16, to_bf16, 0x7F80) == 0);
    CHECK(narrowing_faults(from_fp16, to_fp16, 0x7C00) == 0);
    CHECK(to_fp16(std::numeric_limits<float>::denorm_min()) == 0);
    CHECK(to_fp16(-std::numeric_limits<float>::denorm_min()) == 0x8000);
}

TEST_CASE("every NaN is narrowed to the same one") {
    for (const std::uint32_t bits : {0x7F800001u, 0xFF800001u, 0x7FC00000u, 0xFFFFFFFFu}) {
        CHECK(to_bf16(std::bit_cast<float>(bits)) == 0x7FC0);
        CHECK(to_fp16(std::bit_cast<float>(bits)) == 0x7E00);
    }
}

TEST_CASE("landmarks of the 16-bit formats") {
    STATIC_REQUIRE(from_bf16(0x3F80) == 1.0F);
    STATIC_REQUIRE(from_bf16(0x0001) == 0x1p-133F);
    STATIC_REQUIRE(from_fp16(0x3C00) == 1.0F);
    STATIC_REQUIRE(from_fp16(0x7BFF) == 65504.0F);
    STATIC_REQUIRE(from_fp16(0x0400) == 0x1p-14F);
    STATIC_REQUIRE(from_fp16(0x8001) == -0x1p-24F);
}

}  // namespace spillway::cpu_optim
