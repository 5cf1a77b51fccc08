// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/chunk_update.h"

namespace spillway::offload::detail {

void verify_staged(const TileStore& store, const ChunkPlanes& chunk, std::uint64_t index) {
    for (const auto plane : chunk.planes) {
        if (chunk.on_drive[index_of(plane)])
            store.verify(plane, chunk.tiles.begin + index,
                         {chunk.tile(plane, index), tile_bytes(plane)});
    }
}

std::array<float*, cpu_optim::most_state_planes> state_of(const ChunkPlanes& chunk,
                                                          std::uint64_t index,
                                                          std::uint64_t first) {
    std::array<float*, cpu_optim::most_state_planes> state{};
    std::size_t next = 0;
    for (const auto plane : chunk.planes) {
        if (plane != Plane::weight && plane != Plane::residue)
            state[next++] = reinterpret_cast<float*>(chunk.tile(plane, index)) + first;
    }
    return state;
}

void checksum_staged(const ChunkPlanes& chunk, std::uint64_t index) {
    for (const auto plane : chunk.planes) {
        if (chunk.on_drive[index_of(plane)])
            chunk.checksums[index_of(plane)][index] =
                tile_checksum({chunk.tile(plane, index), tile_bytes(plane)});
    }
}

}  // namespace spillway::offload::detail
