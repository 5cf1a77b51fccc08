// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <cstddef>

#include "cpu_optim/detail/one_nan.h"

namespace spillway::cpu_optim::detail {

/// The one shape of a tile's sum: element i is added to lane i % 16, in double, and then the lanes
/// pairwise (8 + 8, 4 + 4, 2 + 2, 1 + 1). Kernels of every width can follow it.
inline constexpr std::size_t sum_lanes = 16;

[[nodiscard]] inline double add_up_lanes(std::array<double, sum_lanes> lanes) {
    for (std::size_t half = sum_lanes / 2; half > 0; half /= 2)
        for (std::size_t lane = 0; lane < half; ++lane)
            lanes[lane] += lanes[lane + half];
    return with_one_nan(lanes[0]);
}

}  // namespace spillway::cpu_optim::detail
