// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/moment_codec.h"

#include <algorithm>
#include <cstring>

namespace spillway::cpu_optim {
namespace {

std::uint32_t magnitude_bits(float value) {
    return std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFu;
}

/// Whether every value is one that this scale can tell from all others.
bool holds_exactly(MomentKind kind, std::span<const float> values, std::uint8_t scale) {
    return std::ranges::all_of(values, [&](float value) {
        return magnitude_bits(decode(kind, encode(kind, value, scale, 0), scale)) ==
               magnitude_bits(value);
    });
}

}  // namespace

void decode_block(MomentKind kind, std::span<const std::uint8_t, block_elements> codes,
                  std::uint8_t scale, std::span<float> out) {
    for (std::size_t i = 0; i < out.size(); ++i)
        out[i] = decode(kind, codes[code_place(i)], scale);
}

std::uint8_t encode_block(MomentKind kind, std::span<const float> values,
                          std::span<std::uint8_t, block_elements> codes) {
    std::uint32_t largest = 0;
    for (const float value : values)
        largest = std::max(largest, magnitude_bits(value));
    std::ranges::fill(codes, std::uint8_t{0});
    auto scale = scale_of(kind, largest);
    if (scale == nan_scale)
        return scale;
    // Rounding may have brought the block's largest below what the smaller scale needs.
    if (!holds_exactly(kind, values, scale) &&
        holds_exactly(kind, values, static_cast<std::uint8_t>(scale + 1)))
        ++scale;
    constexpr std::uint32_t half = 1u << (cut_off_bits - 1);
    for (std::size_t i = 0; i < values.size(); ++i)
        codes[code_place(i)] = encode(kind, values[i], scale, half);
    return scale;
}

}  // namespace spillway::cpu_optim
