// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/update/chunk_update.h"

#include <algorithm>
#include <atomic>
#include <vector>

namespace spillway::offload::detail {

void for_each_tile(UpdateThreads& threads, std::span<const ChunkPlanes> chunks,
                   const std::function<void(const ChunkPlanes&, std::uint64_t)>& body,
                   const std::function<void(const ChunkPlanes&)>& updated) {
    std::uint64_t stride = 0;
    for (const auto& chunk : chunks)
        stride = std::max(stride, chunk.tiles.size());
    std::vector<std::atomic<std::uint64_t>> done(chunks.size());
    threads.for_each(chunks.size() * stride, [&](std::uint64_t i) {
        const auto which = static_cast<std::size_t>(i / stride);
        const auto& chunk = chunks[which];
        if (i % stride >= chunk.tiles.size())  // the last chunk of the order may be shorter
            return;
        body(chunk, i % stride);
        if (++done[which] == chunk.tiles.size())
            updated(chunk);
    });
}

void for_each_tile_in_turns(
    UpdateThreads& threads, std::span<const ChunkPlanes> chunks, std::size_t at_once,
    const std::function<void(const ChunkPlanes&, std::uint64_t, std::size_t place)>& body,
    const std::function<void()>& ended) {
    struct Tile {
        const ChunkPlanes* chunk;
        std::uint64_t index;
    };
    std::vector<Tile> tiles;
    for (const auto& chunk : chunks) {
        for (std::uint64_t index = 0; index < chunk.tiles.size(); ++index)
            tiles.push_back({&chunk, index});
    }
    for (std::size_t first = 0; first < tiles.size();) {
        const auto count = std::min(at_once, tiles.size() - first);
        threads.for_each(count, [&](std::uint64_t place) {
            const auto& [chunk, index] = tiles[first + place];
            body(*chunk, index, static_cast<std::size_t>(place));
        });
        ended();
        first += count;
    }
}

TraceNumbers numbers_of(std::span<const ChunkPlanes> chunks) noexcept {
    return chunks.empty() ? TraceNumbers{}
                          : TraceNumbers{.what = "chunk", .number = chunks.front().chunk};
}

void verify_staged(const TileStore& store, const ChunkPlanes& chunk, std::uint64_t index) {
    if (chunk.verified)
        return;
    for (const auto plane : chunk.planes) {
        if (chunk.on_drive[index_of(plane)])
            store.verify(plane, chunk.tiles.begin + index,
                         {chunk.tile(plane, index), tile_bytes(plane)});
    }
}

void checksum_staged(const ChunkPlanes& chunk, std::uint64_t index) {
    for (const auto plane : chunk.planes) {
        if (chunk.on_drive[index_of(plane)])
            chunk.checksums[index_of(plane)][index] =
                tile_checksum({chunk.tile(plane, index), tile_bytes(plane)});
    }
}

}  // namespace spillway::offload::detail
