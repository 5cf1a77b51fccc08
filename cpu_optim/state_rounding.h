// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>

/// The random numbers of stochastic rounding: a hash of (seed, purpose, tensor, element of the
/// tensor, step), so that they depend on no placement, thread, cut or instruction set. Why rounding
/// is stochastic: a mean of squares moves by a thousandth of itself in a step, which is less than
/// half a unit of a short format, and rounding to nearest would lose it every time.
namespace spillway::cpu_optim {

/// One tensor's numbers in one of its updates.
struct RoundingStream {
    std::uint64_t seed = 0;
    std::uint64_t tensor = 0;
    std::uint64_t step = 0;  ///< the tensor's own count, as in make_coefficients()
};

/// What a stream's hash starts from for elements that share their upper 32 bits.
struct RoundingKey {
    std::uint32_t offset = 0;
    std::uint32_t flip = 0;
};

inline constexpr std::uint32_t rounding_stride = 0x9E3779B1u;
inline constexpr std::uint32_t rounding_multiplier = 0x7FEB352Du;

[[nodiscard]] constexpr RoundingKey rounding_key(const RoundingStream& stream,
                                                 std::uint64_t element) noexcept {
    constexpr std::uint64_t purpose = 0x726F756E64;  // "round"
    const auto mix = [](std::uint64_t z) {           // splitmix64
        z += 0x9E3779B97F4A7C15u;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        return z ^ (z >> 31);
    };
    const auto key = mix(mix(mix(mix(mix(purpose) + stream.seed) + stream.tensor) + stream.step) +
                         (element >> 32));
    return {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)};
}

/// 32 bits for one element; the upper ones are the better mixed. One multiplication of a sequence
/// that already steps by the golden ratio: neighbours are spread evenly rather than independent,
/// which only makes their rounding errors cancel sooner, and an element's own numbers over the
/// steps are as good as the key's.
[[nodiscard]] constexpr std::uint32_t random_bits(RoundingKey key, std::uint64_t element) noexcept {
    const std::uint32_t x = key.offset + static_cast<std::uint32_t>(element) * rounding_stride;
    return (x ^ (x >> 16) ^ key.flip) * rounding_multiplier;
}

}  // namespace spillway::cpu_optim
