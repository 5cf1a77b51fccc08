// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <functional>

#include "offload/commit_table.h"
#include "offload/detail/drives/tile_store.h"

namespace spillway::offload::detail {

/// All stored tiles of one store to another of the same tiles and planes, each verified on the way
/// (IntegrityError). Reads and writes run side by side, tile_copy_bytes in all; several drives are
/// kept busy together.
struct TileCopy {
    TileStore& from;
    TileStore& to;
    const CommitTable& table;        ///< what `from` was loaded with
    std::uint64_t region_tiles = 0;  ///< of whichever has several drives; 0: neither has
    /// Called with the bytes that arrived since the last call; throws to end the copy.
    std::function<void(std::uint64_t bytes)> advanced;
};

inline constexpr std::size_t tile_copy_bytes = std::size_t{16} << 20;

/// Throws what `advanced` throws and std::system_error too; nothing is in flight then. Not flushed.
void copy_tiles(const TileCopy& copy);

}  // namespace spillway::offload::detail
