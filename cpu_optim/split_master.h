// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu_optim/isa.h"

namespace spillway::cpu_optim {

/// An fp32 master weight as the bf16 working weight and a 16-bit residue, exactly:
/// u = bits of the fp32 value; hi = (u + 0x8000) >> 16 (bf16, round half up); lo = int16(u);
/// u = (hi << 16) + lo. Nearest-even could not be undone from 16 bits: ties.
struct SplitWeight {
    std::uint16_t hi;
    std::int16_t lo;
};

[[nodiscard]] constexpr SplitWeight split(float value) noexcept {
    const auto u = std::bit_cast<std::uint32_t>(value);
    return {static_cast<std::uint16_t>((u + 0x8000u) >> 16),
            static_cast<std::int16_t>(u & 0xFFFFu)};
}

[[nodiscard]] constexpr float join(SplitWeight weight) noexcept {
    const auto lo = static_cast<std::uint32_t>(static_cast<std::int32_t>(weight.lo));
    return std::bit_cast<float>((std::uint32_t{weight.hi} << 16) + lo);
}

/// Bits of the largest master whose `hi` is finite.
inline constexpr std::uint32_t largest_split_bits = 0x7F7F7FFFu;
/// Whether `hi` would be infinite or NaN: such a master may not be stored.
[[nodiscard]] constexpr bool has_finite_hi(float value) noexcept {
    return (std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFu) <= largest_split_bits;
}

/// out[i] = join(hi[i], lo[i]); `out` may overlap neither input. All spans have one length.
void join_master(Isa isa, std::span<const std::uint16_t> hi, std::span<const std::int16_t> lo,
                 std::span<float> out);

/// Splits `master` into `hi` and `lo`. Returns how many elements have no finite hi (those are
/// written as they split, so the caller must not store the result unless this is 0).
[[nodiscard]] std::size_t split_master(Isa isa, std::span<const float> master,
                                       std::span<std::uint16_t> hi, std::span<std::int16_t> lo);

}  // namespace spillway::cpu_optim
