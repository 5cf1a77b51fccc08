// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "offload/detail/drives/tile_store.h"
#include "offload/detail/threads/update_threads.h"
#include "offload/plane.h"
#include "offload/step_trace.h"

namespace spillway::offload::detail {

/// One chunk as the fused pass sees it: where its planes are, and which of them came from the drive
/// and go back to it.
struct ChunkPlanes {
    std::uint64_t chunk = 0;
    PlaneSet planes;
    TileRange tiles;
    PerPlane<std::byte*> data{};
    PerPlane<bool> on_drive{};
    bool verified = false;                  ///< since it came from the drive
    std::byte* spilled_gradient = nullptr;  ///< null: it never left host memory
    /// Per plane, per tile: checksum of the new contents, for planes on the drive.
    PerPlane<std::span<std::uint64_t>> checksums;

    /// Tile `index` of the chunk in one plane.
    [[nodiscard]] std::byte* tile(Plane plane, std::uint64_t index) const noexcept {
        return data[index_of(plane)] + index * tile_bytes(plane);
    }
};

/// For the trace: the first of them.
[[nodiscard]] TraceNumbers numbers_of(std::span<const ChunkPlanes> chunks) noexcept;

/// Throws IntegrityError unless the planes that came from the drive are what was stored. Once they
/// are verified it does not look again.
void verify_staged(const TileStore& store, const ChunkPlanes& chunk, std::uint64_t index);
/// Notes the checksums of the planes that go back to the drive.
void checksum_staged(const ChunkPlanes& chunk, std::uint64_t index);

/// Runs body(chunk, index of a tile in it) for every tile of the chunks, and `updated` on each
/// chunk once all its tiles are done; both from any of the threads.
void for_each_tile(UpdateThreads& threads, std::span<const ChunkPlanes> chunks,
                   const std::function<void(const ChunkPlanes&, std::uint64_t)>& body,
                   const std::function<void(const ChunkPlanes&)>& updated);

/// Runs body(chunk, index of a tile in it, place) for every tile of the chunks, a turn of
/// `at_once` tiles after another in order: `place` is the tile's among those of its turn. `ended`
/// is called after each turn.
void for_each_tile_in_turns(
    UpdateThreads& threads, std::span<const ChunkPlanes> chunks, std::size_t at_once,
    const std::function<void(const ChunkPlanes&, std::uint64_t, std::size_t place)>& body,
    const std::function<void()>& ended);

enum class ChunkGradients {
    awaited,  ///< some may still come
    none,     ///< the chunk stays as it is
    given,
};

/// What one update does with its chunks. Called by the pipeline's thread alone; what it throws
/// poisons the engine.
class ChunkUpdate {
  public:
    using Updated = std::function<void(const ChunkPlanes&)>;

    ChunkUpdate() = default;
    virtual ~ChunkUpdate() = default;
    ChunkUpdate(const ChunkUpdate&) = delete;
    ChunkUpdate& operator=(const ChunkUpdate&) = delete;

    /// Before the first chunk.
    virtual void begin() = 0;
    [[nodiscard]] virtual ChunkGradients gradients(std::uint64_t chunk) = 0;
    /// Blocks until they are not awaited any more.
    virtual void wait_for_gradients(std::uint64_t chunk) = 0;
    /// A pass before the last, counted from 0, on chunks with gradients: looks at the planes,
    /// verifying what came from the drive, and changes nothing of what is stored.
    virtual void measure(std::span<const ChunkPlanes> chunks, std::size_t pass) = 0;
    /// Updates the planes of chunks with gradients in place, verifying what came from the drive;
    /// calls `updated` from any thread as soon as a chunk is done.
    virtual void update(std::span<const ChunkPlanes> chunks, const Updated& updated) = 0;
    /// After the last chunk was written back.
    virtual void end() = 0;
};

}  // namespace spillway::offload::detail
