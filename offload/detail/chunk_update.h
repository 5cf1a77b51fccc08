// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu_optim/elementwise.h"
#include "offload/detail/tile_store.h"
#include "offload/plane.h"

namespace spillway::offload::detail {

/// One chunk as the fused pass sees it: where its planes are, and which of them came from the drive
/// and go back to it.
struct ChunkPlanes {
    PlaneSet planes;
    TileRange tiles;
    PerPlane<std::byte*> data{};
    PerPlane<bool> on_drive{};
    const std::byte* spilled_gradient = nullptr;  ///< null: it never left host memory
    /// Per plane, per tile: checksum of the new contents, for planes on the drive.
    PerPlane<std::span<std::uint64_t>> checksums;

    /// Tile `index` of the chunk in one plane.
    [[nodiscard]] std::byte* tile(Plane plane, std::uint64_t index) const noexcept {
        return data[index_of(plane)] + index * tile_bytes(plane);
    }
};

/// Throws IntegrityError unless the planes that came from the drive are what was stored.
void verify_staged(const TileStore& store, const ChunkPlanes& chunk, std::uint64_t index);
/// Notes the checksums of the planes that go back to the drive.
void checksum_staged(const ChunkPlanes& chunk, std::uint64_t index);

/// Where the optimizer's state of a tile's elements from `first` on lies, in its order.
[[nodiscard]] std::array<float*, cpu_optim::most_state_planes> state_of(const ChunkPlanes& chunk,
                                                                        std::uint64_t index,
                                                                        std::uint64_t first);

/// What one update does with its chunks. Called by the pipeline's thread alone, in the order of the
/// members; what it throws poisons the engine.
class ChunkUpdate {
  public:
    ChunkUpdate() = default;
    virtual ~ChunkUpdate() = default;
    ChunkUpdate(const ChunkUpdate&) = delete;
    ChunkUpdate& operator=(const ChunkUpdate&) = delete;

    /// Before the first chunk.
    virtual void begin() = 0;
    /// Blocks until the chunk's gradients are there. False: it has none, and stays as it is.
    [[nodiscard]] virtual bool wait_for_gradients(std::uint64_t chunk) = 0;
    /// Updates the planes in place, verifying what came from the drive.
    virtual void update(std::uint64_t chunk, const ChunkPlanes& planes) = 0;
    /// After the last chunk was written back.
    virtual void end() = 0;
};

}  // namespace spillway::offload::detail
