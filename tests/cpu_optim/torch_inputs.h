// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <bit>
#include <cstdint>

#include "tests/cpu_optim/sample_values.h"

/// The inputs of tests/python/torch_transcripts.py, bit by bit.
namespace spillway::cpu_optim::testing {

inline constexpr std::uint64_t transcript_steps = 200;

/// Of either sign, of magnitudes from 2^least_exponent up to 2^(least_exponent + exponents).
inline float transcript_value(std::uint64_t stream, std::uint64_t n, int least_exponent,
                              std::uint32_t exponents) {
    const std::uint64_t random = sample_bits(stream, n);
    const auto power = static_cast<std::uint32_t>((random >> 40) % exponents);
    const auto exponent = static_cast<std::uint32_t>(127 + least_exponent) + power;
    return std::bit_cast<float>((static_cast<std::uint32_t>(random) & 0x807FFFFFu) | exponent
                                                                                         << 23);
}
inline float transcript_weight(std::uint64_t element) {
    return transcript_value(101, element, -7, 7);
}
/// From 7e-9 to 1e3, of changing sign.
inline float transcript_gradient(std::uint64_t step, std::uint64_t element) {
    return transcript_value(102, 1000 * step + element, -27, 37);
}
inline bool transcript_overflow(std::uint64_t n) {
    return sample_bits(103, n) % 11 == 0 || (n >= 60 && n < 70);
}

}  // namespace spillway::cpu_optim::testing
