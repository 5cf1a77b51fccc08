// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace spillway::offload::detail {

/// 0 .. count - 1 in an order whose every beginning is spread evenly over them (bits reversed: van
/// der Corput 1935). Chunks that stay in memory are taken in this order, so that the drive has work
/// during the whole update: were they the first ones, it would rest while those are updated.
[[nodiscard]] inline std::vector<std::uint64_t> spread_order(std::uint64_t count) {
    std::vector<std::uint64_t> order;
    for (std::uint64_t index = 0; order.size() < count; ++index) {
        std::uint64_t reversed = 0;
        for (std::uint64_t bit = 1, mirror = std::bit_ceil(count) / 2; mirror != 0;
             bit *= 2, mirror /= 2)
            reversed += (index & bit) != 0 ? mirror : 0;
        if (reversed < count)
            order.push_back(reversed);
    }
    return order;
}

}  // namespace spillway::offload::detail
