// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>

#include "cpu_optim/isa.h"
#include "offload/plane.h"

namespace spillway::offload::detail {

inline constexpr std::size_t half_tile_bytes = tile_bytes(Plane::weight);
inline constexpr std::size_t joined_tile_bytes = tile_elements * sizeof(float);
static_assert(half_tile_bytes + tile_bytes(Plane::residue) == joined_tile_bytes,
              "a tile's two halves fill exactly the room of its fp32 values");
static_assert(tile_bytes(Plane::average) == joined_tile_bytes);

/// The fp32 values of a tile's two halves.
void join_tile(cpu_optim::Isa isa, const std::byte* weight, const std::byte* residue,
               std::byte* joined);

/// Each tile's room holds its two halves, weight first; they become its fp32 values.
void join_in_place(cpu_optim::Isa isa, std::byte* tiles, std::size_t count);

}  // namespace spillway::offload::detail
