// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu_optim/float_formats.h"
#include "cpu_optim/moment_kinds.h"
#include "cpu_optim/state_rounding.h"

/// The lossy formats of state, one value at a time: what every kernel follows bit by bit.
///
/// bf16: the upper half of an fp32 value.
///
/// int8: mu-law companding in its segmented form (ITU-T G.711: add a bias, then keep the exponent
/// and the first bits of the fraction), in blocks of 256 elements as Dettmers et al. 2022
/// (arXiv:2110.02861), with the bias, a power of two, as the block's scale:
///
///     y = |x| + bias,   code = the upper bits of y, down to 4 of its fraction, less those of bias
///
/// which takes an addition and a shift, no table and no logarithm. A mean has a sign and 8 segments
/// of 16 steps: steps are |x| / 16 for large values and the block's largest / 3952 or less near 0.
/// A square has 16 segments: down to the largest / 507,896. The fraction cut off is rounded
/// stochastically: decode(encode(x)) differs from x by less than (|x| + bias) / 16 and is x on
/// average. A square above 0 is never stored as 0 (an update divides by its root): it becomes at
/// least the first step, bias / 16. A block in which any value is not finite, or within a sixteenth
/// of the largest that fp32 holds, is NaN in all of its elements.
namespace spillway::cpu_optim {

/// Away from 0 with the probability of the part cut off, which is compared with the upper half of
/// `random`; the average is the value. NaN stays NaN, infinity infinity.
[[nodiscard]] constexpr std::uint16_t to_bf16(float value, std::uint32_t random) noexcept {
    const auto u = std::bit_cast<std::uint32_t>(value);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u)
        return 0x7FC0;
    return static_cast<std::uint16_t>((u + (random >> 16)) >> 16);
}

inline constexpr std::size_t block_elements = 256;

/// Where a block keeps the code of its element `i`: 32-bit word j holds those of elements j, j +
/// 64, j + 128 and j + 192, so that vectors of any width find whole words.
[[nodiscard]] constexpr std::size_t code_place(std::size_t i) noexcept {
    constexpr std::size_t words = block_elements / 4;
    return i % words * 4 + i / words;
}

inline constexpr unsigned cut_off_bits = 19;  ///< of an fp32 value: 4 of its fraction are kept
inline constexpr std::uint32_t cut_off_mask = (1u << cut_off_bits) - 1;
inline constexpr std::uint32_t infinity_bits = 0x7F800000u;

/// The scale of a block with a value that is not finite.
inline constexpr std::uint8_t nan_scale = 255;
/// Of a block of zeros, as memory starts.
inline constexpr std::uint8_t zero_scale = 0;
/// So that a step near 0 is a normal number.
inline constexpr std::uint8_t least_scale = 5;

/// The largest multiple of the bias whose code is the last one, however it is rounded.
[[nodiscard]] constexpr float most_biases(MomentKind kind) noexcept {
    return kind == MomentKind::mean ? 247.0F : 63487.0F;
}

/// The bias's exponent: the smallest with which `largest_bits`, the bits of the largest magnitude
/// of a block, fits.
[[nodiscard]] constexpr std::uint8_t scale_of(MomentKind kind,
                                              std::uint32_t largest_bits) noexcept {
    // Above, the last code would stand for infinity.
    constexpr std::uint32_t fraction_bits = 0x7FFFFFu, last_power_bits = 0x7F000000u;
    const auto most = std::bit_cast<std::uint32_t>(most_biases(kind));
    if (largest_bits > (last_power_bits | (most & fraction_bits)))
        return nan_scale;
    if (largest_bits == 0)
        return zero_scale;
    const auto limit = std::bit_cast<std::int32_t>(most_biases(kind));
    const auto exponent =
        127 + ((static_cast<std::int32_t>(largest_bits) - limit + 0x7FFFFF) >> 23);
    return static_cast<std::uint8_t>(exponent < least_scale ? least_scale : exponent);
}
/// NaN for nan_scale, so that all that is decoded with it is NaN.
[[nodiscard]] constexpr std::uint32_t bias_bits(std::uint8_t scale) noexcept {
    return scale == nan_scale ? 0x7FC00000u : std::uint32_t{scale} << 23;
}

/// `random` as random_bits() gives it; the two kinds take different bits of it.
[[nodiscard]] constexpr std::uint32_t rounding_term(MomentKind kind,
                                                    std::uint32_t random) noexcept {
    return kind == MomentKind::mean ? random & cut_off_mask : random >> (32 - cut_off_bits);
}

/// `term`: what is added to the fraction cut off, 0 to cut_off_mask. Of the scale that scale_of()
/// gives for the block, not nan_scale.
[[nodiscard]] constexpr std::uint8_t encode(MomentKind kind, float value, std::uint8_t scale,
                                            std::uint32_t term) noexcept {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const auto magnitude = std::bit_cast<float>(u & 0x7FFFFFFFu);
    const float biased = magnitude + std::bit_cast<float>(bias_bits(scale));
    const auto code =
        (std::bit_cast<std::uint32_t>(biased) + term - bias_bits(scale)) >> cut_off_bits;
    if (kind == MomentKind::mean)
        return static_cast<std::uint8_t>((u >> 31 << 7) | (code & 0x7Fu));
    return static_cast<std::uint8_t>(code == 0 && magnitude > 0 ? 1 : code);
}

[[nodiscard]] constexpr float decode(MomentKind kind, std::uint8_t code,
                                     std::uint8_t scale) noexcept {
    const std::uint32_t steps = kind == MomentKind::mean ? code & 0x7Fu : code;
    const float biased = std::bit_cast<float>((steps << cut_off_bits) + bias_bits(scale));
    const float magnitude = biased - std::bit_cast<float>(bias_bits(scale));
    if (kind == MomentKind::mean && (code & 0x80u) != 0)
        return -magnitude;
    return magnitude;
}

/// Decodes the first out.size() elements of a block, at most all.
void decode_block(MomentKind kind, std::span<const std::uint8_t, block_elements> codes,
                  std::uint8_t scale, std::span<float> out);

/// Encodes the first values.size() elements of a block to nearest, zeros after them, and returns
/// the scale. What decode_block() gave comes back as the very same values. A square below 0 is
/// taken as its magnitude.
[[nodiscard]] std::uint8_t encode_block(MomentKind kind, std::span<const float> values,
                                        std::span<std::uint8_t, block_elements> codes);

}  // namespace spillway::cpu_optim
