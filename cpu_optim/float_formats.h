// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <bit>
#include <cstdint>

/// The 16-bit formats gradients arrive in, widened exactly. A NaN stays one; its payload is of no
/// account.
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

}  // namespace spillway::cpu_optim
