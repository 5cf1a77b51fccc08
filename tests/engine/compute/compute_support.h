// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "cpu_optim/isa.h"
#include "engine/compute/compute_pool.h"

namespace spillway::testing {

using Floats = std::vector<float>;

inline Floats random_floats(std::size_t count, unsigned seed, float deviation = 1.0f) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0f, deviation);
    Floats values(count);
    for (float& value : values)
        value = normal(random);
    return values;
}

inline bool same_bits(const Floats& a, const Floats& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
        return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
    });
}

/// Distance from `exact` in units of the last place of a float of its size.
inline double ulps(float found, double exact) {
    const float near = std::abs(static_cast<float>(exact));
    const double unit =
        static_cast<double>(std::nextafter(near, std::numeric_limits<float>::infinity())) -
        static_cast<double>(near);
    return std::abs(static_cast<double>(found) - exact) / unit;
}

/// Runs `kernel(pool)`, which returns what it computed, on every instruction set and on one and two
/// threads; true if all give the same bits.
template <typename Kernel>
bool same_everywhere(const Kernel& kernel) {
    engine::ComputePool first(1, cpu_optim::best_isa());
    const Floats expected = kernel(first);
    for (const auto isa : cpu_optim::supported_isas())
        for (const std::size_t threads : {1u, 2u}) {
            engine::ComputePool pool(threads, isa);
            if (!same_bits(kernel(pool), expected))
                return false;
        }
    return true;
}

}  // namespace spillway::testing
