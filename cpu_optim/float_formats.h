// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <bit>
#include <cstdint>

/// The 16-bit formats of gradients and weights: widened exactly, and narrowed to nearest, ties to
/// even. A NaN stays one; its payload is of no account, and narrowing makes all of them one.
/// Subnormal values are kept, whatever the floating-point mode.
namespace spillway::cpu_optim {

[[nodiscard]] constexpr float from_bf16(std::uint16_t bits) noexcept {
    return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

/// IEEE binary16: 5 bits of exponent with bias 15, 10 of fraction.
[[nodiscard]] constexpr float from_fp16(std::uint16_t bits) noexcept {
    const std::uint32_t sign = (bits & 0x8000u) << 16;
    const std::uint32_t magnitude = bits & 0x7FFFu;
    constexpr std::uint32_t smallest_normal = 0x0400, infinity = 0x7C00;
    if (magnitude >= infinity)
        return std::bit_cast<float>(sign | 0x7F800000u | (magnitude & 0x03FFu) << 13);
    if (magnitude >= smallest_normal)
        return std::bit_cast<float>(sign | ((magnitude << 13) + ((127u - 15u) << 23)));
    const float subnormal = static_cast<float>(magnitude) * 0x1p-24F;
    return sign != 0 ? -subnormal : subnormal;
}

[[nodiscard]] constexpr std::uint16_t to_bf16(float value) noexcept {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return 0x7FC0;
    return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1)) >> 16);
}

/// 65520 and more, the largest value and half of the step beyond it, become infinite.
[[nodiscard]] constexpr std::uint16_t to_fp16(float value) noexcept {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
    const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
    constexpr std::uint32_t smallest_normal = (127u - 14u) << 23;
    if (magnitude > 0x7F800000u)
        return 0x7E00;
    if (magnitude >= std::bit_cast<std::uint32_t>(65520.0F))
        return sign | 0x7C00;
    if (magnitude >= smallest_normal) {
        const std::uint32_t rebiased = magnitude - ((127u - 15u) << 23);
        return static_cast<std::uint16_t>(sign |
                                          (rebiased + 0x0FFFu + ((rebiased >> 13) & 1)) >> 13);
    }
    // In units of 2^-24, the step of subnormal values: the fraction shifted down by 14 or more.
    const std::uint32_t shift = 126u - (magnitude >> 23);
    if (shift > 24)
        return sign;
    const std::uint32_t fraction = (magnitude & 0x007FFFFFu) | 0x00800000u;
    const std::uint32_t below_half = (1u << (shift - 1)) - 1;
    const std::uint32_t rounded = (fraction + below_half + ((fraction >> shift) & 1)) >> shift;
    return static_cast<std::uint16_t>(sign | rounded);
}

}  // namespace spillway::cpu_optim
