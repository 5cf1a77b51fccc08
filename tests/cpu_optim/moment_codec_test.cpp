// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/moment_codec.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <catch2/catch.hpp>

#include "cpu_optim/float_formats.h"
#include "tests/cpu_optim/sample_values.h"

namespace spillway::cpu_optim {
namespace {

using testing::sample_bits;
using testing::sample_magnitude;

constexpr std::array every_kind{MomentKind::mean, MomentKind::square};

/// A block whose magnitudes are spread over nine powers of ten below `largest`.
std::vector<float> sample_block(MomentKind kind, std::uint64_t stream, double largest) {
    std::vector<float> values(block_elements);
    for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = sample_magnitude(stream, i, largest * 1e-9, largest);
        if (kind == MomentKind::square)
            values[i] = std::abs(values[i]);
    }
    values[stream % block_elements] = 0;
    return values;
}

std::uint32_t largest_bits(const std::vector<float>& values) {
    std::uint32_t largest = 0;
    for (const float value : values)
        largest = std::max(largest, std::bit_cast<std::uint32_t>(std::abs(value)));
    return largest;
}

float bias_of(std::uint8_t scale) {
    return std::bit_cast<float>(bias_bits(scale));
}

TEST_CASE("Every code of every scale but NaN's decodes to a value that encodes to it again") {
    for (const auto kind : every_kind) {
        for (int scale = least_scale; scale <= (kind == MomentKind::mean ? 247 : 239); ++scale) {
            const auto s = static_cast<std::uint8_t>(scale);
            // The highest code is that of a rounded value; the scale is for what is below it.
            for (int code = 0; code < 256; ++code) {
                const auto c = static_cast<std::uint8_t>(code);
                const float value = decode(kind, c, s);
                REQUIRE(std::isfinite(value));
                REQUIRE(int{encode(kind, value, s, 0)} == code);
                REQUIRE(int{encode(kind, value, s, cut_off_mask)} == code);
            }
        }
    }
}

TEST_CASE("A scale is the smallest that holds a block's largest value however it is rounded") {
    for (const auto kind : every_kind) {
        for (std::uint64_t n = 0; n < 20'000; ++n) {
            const auto bits = static_cast<std::uint32_t>(sample_bits(1, n)) % infinity_bits;
            const float value = std::bit_cast<float>(bits);
            const auto scale = scale_of(kind, bits);
            if (scale == nan_scale) {
                REQUIRE(value > 3.2e38F);
                continue;
            }
            const double limit = double{most_biases(kind)};
            REQUIRE(double{value} <= limit * double{bias_of(scale)});
            if (scale > least_scale)
                REQUIRE(double{value} > limit * double{bias_of(scale)} / 2);
            for (const std::uint32_t term : {0u, cut_off_mask / 2, cut_off_mask}) {
                const double found = double{decode(kind, encode(kind, value, scale, term), scale)};
                if (kind == MomentKind::square && bits != 0)
                    REQUIRE(found > 0);
                REQUIRE(std::abs(found - double{value}) <=
                        1.0001 * (double{value} + double{bias_of(scale)}) / 16);
            }
        }
    }
    REQUIRE(scale_of(MomentKind::mean, 0) == zero_scale);
    REQUIRE(scale_of(MomentKind::square, infinity_bits) == nan_scale);
    REQUIRE(scale_of(MomentKind::square, 0x7FC00001u) == nan_scale);
}

TEST_CASE(
    "What is encoded is off by less than a sixteenth of value and bias, and right on average") {
    for (const auto kind : every_kind) {
        const auto values = sample_block(kind, 7, 3e-4);
        const auto scale = scale_of(kind, largest_bits(values));
        const double bias = double{bias_of(scale)};
        constexpr int draws = 4'000;
        for (std::size_t i = 0; i < values.size(); ++i) {
            const double value = double{values[i]};
            const double step = (std::abs(value) + bias) / 16;
            double sum = 0;
            for (std::uint64_t draw = 0; draw < draws; ++draw) {
                const auto random = random_bits(rounding_key({5, 2, draw}, i), i);
                const double found = double{decode(
                    kind, encode(kind, values[i], scale, rounding_term(kind, random)), scale)};
                REQUIRE(std::abs(found - value) <= step);
                if (kind == MomentKind::square)
                    REQUIRE((found > 0) == (value > 0));
                sum += found;
            }
            // Six standard deviations of a mean of values at most a step apart.
            const bool is_raised = kind == MomentKind::square && value > 0 && value < bias / 16;
            if (!is_raised)
                REQUIRE(std::abs(sum / draws - value) < 6 * step / 2 / std::sqrt(double{draws}));
        }
    }
}

TEST_CASE("A square that stochastic rounding would lose moves on average as it should") {
    // v -> 0.999 v for 500 steps: each step is a sixtieth of the distance between two codes.
    double sum = 0;
    double lost = 0;
    constexpr std::uint64_t elements = 2'000;
    for (std::uint64_t element = 0; element < elements; ++element) {
        float v = 1.0F;
        std::uint16_t half = to_bf16(1.0F);
        for (std::uint64_t step = 1; step <= 500; ++step) {
            const auto random = random_bits(rounding_key({9, 0, step}, element), element);
            constexpr auto kind = MomentKind::square;
            const auto scale = scale_of(kind, std::bit_cast<std::uint32_t>(1.0F));
            v = decode(kind, encode(kind, v * 0.999F, scale, rounding_term(kind, random)), scale);
            half = to_bf16(from_bf16(half) * 0.999F, random);
        }
        sum += double{v};
        lost += double{from_bf16(half)};
    }
    const double expected = std::pow(0.999, 500);
    REQUIRE(std::abs(sum / elements - expected) < 0.02 * expected);
    REQUIRE(std::abs(lost / elements - expected) < 0.01 * expected);
    // To nearest it would not have moved at all.
    REQUIRE(from_bf16(to_bf16(0.999F)) == 1.0F);
}

TEST_CASE("A block decodes and encodes again to the same values, NaN and zeros too") {
    for (const auto kind : every_kind) {
        for (std::uint64_t stream = 0; stream < 400; ++stream) {
            const std::size_t count = stream % 3 == 0 ? 256 : sample_bits(3, stream) % 257;
            auto values = sample_block(kind, stream, std::pow(10.0, double(stream % 30) - 20));
            values.resize(count);
            const auto scale = scale_of(kind, largest_bits(values));
            std::array<std::uint8_t, block_elements> codes{}, again{};
            for (std::size_t i = 0; i < count; ++i) {
                const auto random = random_bits(rounding_key({1, 1, stream}, i), i);
                codes[code_place(i)] = encode(kind, values[i], scale, rounding_term(kind, random));
            }
            std::vector<float> first(count), second(count);
            decode_block(kind, codes, scale, first);
            const auto found = encode_block(kind, first, again);
            decode_block(kind, again, found, second);
            REQUIRE(testing::first_difference<float>(second, first) == count);
        }
        std::vector<float> values(block_elements, 0.5F);
        values[200] = std::numeric_limits<float>::infinity();
        std::array<std::uint8_t, block_elements> codes{};
        const auto scale = encode_block(kind, values, codes);
        REQUIRE(scale == nan_scale);
        decode_block(kind, codes, scale, values);
        REQUIRE(std::ranges::all_of(values, [](float value) { return std::isnan(value); }));
    }
}

TEST_CASE("bf16 rounds to nearest even, or to either neighbour, and keeps NaN and infinity") {
    REQUIRE(to_bf16(std::bit_cast<float>(0x3F808000u)) == 0x3F80);
    REQUIRE(to_bf16(std::bit_cast<float>(0x3F818000u)) == 0x3F82);
    REQUIRE(to_bf16(std::bit_cast<float>(0xBF808001u)) == 0xBF81);
    REQUIRE(to_bf16(std::bit_cast<float>(0x7F800001u)) == 0x7FC0);
    REQUIRE(to_bf16(std::bit_cast<float>(0x7FFFFFFFu), 0xFFFFFFFFu) == 0x7FC0);
    REQUIRE(to_bf16(std::bit_cast<float>(0x7F800000u), 0xFFFFFFFFu) == 0x7F80);
    REQUIRE(to_bf16(std::bit_cast<float>(0x3F804000u), 0xBFFF0000u) == 0x3F80);
    REQUIRE(to_bf16(std::bit_cast<float>(0x3F804000u), 0xC0000000u) == 0x3F81);
}

TEST_CASE("Random bits are even over steps, over elements, and independent of each other") {
    constexpr int draws = 40'000;
    for (const bool over_steps : {true, false}) {
        double sum = 0, high_squares = 0, low_sum = 0, product = 0;
        for (std::uint64_t n = 0; n < draws; ++n) {
            const auto key = rounding_key({3, 4, over_steps ? n : 1}, 0);
            const auto bits = random_bits(key, over_steps ? 17 : n);
            const double high =
                double(rounding_term(MomentKind::square, bits)) / cut_off_mask - 0.5;
            const double low = double(rounding_term(MomentKind::mean, bits)) / cut_off_mask - 0.5;
            sum += high;
            low_sum += low;
            high_squares += high * high;
            product += high * low;
        }
        const double deviation = 1 / std::sqrt(12.0 * draws);
        REQUIRE(std::abs(sum / draws) < 5 * deviation);
        REQUIRE(std::abs(low_sum / draws) < 5 * deviation);
        REQUIRE(std::abs(high_squares / draws - 1.0 / 12) < 0.003);
        REQUIRE(std::abs(product / draws) < 0.003);
    }
    REQUIRE(random_bits(rounding_key({0, 0, 1}, 0), 5) !=
            random_bits(rounding_key({0, 1, 1}, 0), 5));
    REQUIRE(random_bits(rounding_key({0, 0, 1}, 0), 5) !=
            random_bits(rounding_key({1, 0, 1}, 0), 5));
    REQUIRE(rounding_key({0, 0, 1}, 5).offset !=
            rounding_key({0, 0, 1}, (std::uint64_t{1} << 32) + 5).offset);
}

}  // namespace
}  // namespace spillway::cpu_optim
