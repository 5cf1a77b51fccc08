// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/drives/tile_join.h"

#include <array>
#include <cstdint>
#include <cstring>

#include "cpu_optim/split_master.h"

namespace spillway::offload::detail {

void join_tile(cpu_optim::Isa isa, const std::byte* weight, const std::byte* residue,
               std::byte* joined) {
    cpu_optim::join_master(isa, {reinterpret_cast<const std::uint16_t*>(weight), tile_elements},
                           {reinterpret_cast<const std::int16_t*>(residue), tile_elements},
                           {reinterpret_cast<float*>(joined), tile_elements});
}

void join_in_place(cpu_optim::Isa isa, std::byte* tiles, std::size_t count) {
    alignas(64) std::array<std::byte, joined_tile_bytes> halves;
    for (std::size_t tile = 0; tile < count; ++tile) {
        auto* const joined = tiles + tile * joined_tile_bytes;
        std::memcpy(halves.data(), joined, joined_tile_bytes);
        join_tile(isa, halves.data(), halves.data() + half_tile_bytes, joined);
    }
}

}  // namespace spillway::offload::detail
