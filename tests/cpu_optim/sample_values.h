// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cpu_optim/isa.h"
#include "tests/support/skip.h"

namespace spillway::cpu_optim::testing {

/// Whether `isa` runs here; if not, the case is marked as skipped with the reason.
inline bool runs_or_skips(Isa isa) {
    for (const Isa supported : supported_isas())
        if (supported == isa)
            return true;
    spillway::testing::skip("this processor does not run " + std::string(isa_name(isa)));
    return false;
}

/// splitmix64 of the n-th number of a stream.
inline std::uint64_t sample_bits(std::uint64_t stream, std::uint64_t n) {
    std::uint64_t z = stream * 0xD1342543DE82EF95u + n * 0x9E3779B97F4A7C15u + 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/// In [0, 1).
inline double sample_unit(std::uint64_t stream, std::uint64_t n) {
    return static_cast<double>(sample_bits(stream, n) >> 11) * 0x1p-53;
}

/// Either sign; magnitudes spread evenly over the powers from `smallest` to `largest`.
inline float sample_magnitude(std::uint64_t stream, std::uint64_t n, double smallest,
                              double largest) {
    const double magnitude = smallest * std::pow(largest / smallest, sample_unit(stream, n));
    const bool negative = (sample_bits(stream + 1000, n) & 1) != 0;
    return static_cast<float>(negative ? -magnitude : magnitude);
}

/// Zeros, subnormals, extremes, infinities, quiet and signalling NaNs with payloads, both signs.
inline constexpr std::array<std::uint32_t, 20> awkward_bits{
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x807FFFFF, 0x00800000,
    0x80800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F7F8000, 0x7F7F7FFF, 0x7F800000, 0xFF800000,
    0x7F800001, 0xFF800001, 0x7FC00000, 0xFFC12345, 0x7FFFFFFF, 0xFFFFFFFF};

/// Ordinary values with an awkward one in every eight.
inline float sample_any(std::uint64_t stream, std::uint64_t n) {
    const std::uint64_t pick = sample_bits(stream + 2000, n);
    if (pick % 8 != 0)
        return sample_magnitude(stream, n, 1e-12, 1e3);
    return std::bit_cast<float>(awkward_bits[(pick >> 8) % awkward_bits.size()]);
}

/// 0 to 67, the neighbours of powers of two, and a million or so.
inline std::vector<std::size_t> awkward_lengths() {
    std::vector<std::size_t> lengths;
    for (std::size_t n = 0; n <= 67; ++n)
        lengths.push_back(n);
    for (std::size_t power = 128; power <= 16384; power *= 2)
        for (const std::size_t n : {power - 1, power, power + 1})
            lengths.push_back(n);
    lengths.push_back(1'000'003);
    return lengths;
}

/// The index of the first element whose bits differ, or the length.
template <typename T>
std::size_t first_difference(std::span<const T> found, std::span<const T> expected) {
    for (std::size_t i = 0; i < expected.size(); ++i) {
        const auto left = std::bit_cast<std::array<std::byte, sizeof(T)>>(found[i]);
        if (left != std::bit_cast<std::array<std::byte, sizeof(T)>>(expected[i]))
            return i;
    }
    return expected.size();
}

}  // namespace spillway::cpu_optim::testing
