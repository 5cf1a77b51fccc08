// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "offload/element_order.h"

namespace spillway::offload {

/// What is stored per parameter: one array over the global element order each.
enum class Plane : std::uint8_t { weight, residue, m, v };

inline constexpr std::array all_planes{Plane::weight, Plane::residue, Plane::m, Plane::v};

[[nodiscard]] constexpr std::size_t element_bytes(Plane plane) noexcept {
    return plane == Plane::weight || plane == Plane::residue ? 2 : 4;
}
[[nodiscard]] constexpr std::size_t tile_bytes(Plane plane) noexcept {
    return tile_elements * element_bytes(plane);
}
[[nodiscard]] constexpr std::size_t index_of(Plane plane) noexcept {
    return static_cast<std::size_t>(plane);
}
[[nodiscard]] constexpr std::string_view plane_name(Plane plane) noexcept {
    constexpr std::array<std::string_view, 4> names{"weight", "residue", "m", "v"};
    return names[index_of(plane)];
}

/// Gradients wait as fp32.
inline constexpr std::size_t gradient_tile_bytes = tile_elements * sizeof(float);

/// A run of consecutive tiles.
struct TileRange {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    [[nodiscard]] std::uint64_t size() const noexcept { return end - begin; }
};

}  // namespace spillway::offload
