// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "offload/detail/drives/tile_store.h"
#include "offload/detail/placement/host_planes.h"
#include "offload/plan.h"

namespace spillway::offload::detail {

/// Reads and writes any run of bytes of a streamed plane, wherever it lives. Not while an update
/// is under way. Not thread-safe.
class PlaneAccess {
  public:
    /// `work`: aligned for direct I/O, a tile of fp32 at least.
    PlaneAccess(TileStore& store, const HostPlanes& planes, const OffloadPlan& plan,
                std::span<std::byte> work)
        : store_(store), planes_(planes), plan_(plan), work_(work) {}

    /// `first_byte` is counted from the plane's start: its tile t begins at t * tile_bytes(plane).
    void read(Plane plane, std::uint64_t first_byte, std::span<std::byte> out);
    /// What lives on the drive is read, changed and written to the copy that no commit names.
    void write(Plane plane, std::uint64_t first_byte, std::span<const std::byte> values);

    /// Where `range` of a plane of elements lies, if all of it is in host memory; else null.
    [[nodiscard]] std::byte* resident(Plane plane, ElementRange range) const;

  private:
    /// Tiles [begin, end) of one plane in memory, `edge` bytes into them, `bytes` of the range.
    struct Part {
        TileRange tiles;
        std::byte* data = nullptr;
        bool on_drive = false;
        std::size_t edge_bytes = 0;
        std::size_t bytes = 0;
    };
    void for_each_part(Plane plane, std::uint64_t first_byte, std::size_t bytes,
                       const std::function<void(const Part&)>& visit);
    void load(Plane plane, const Part& part);
    [[nodiscard]] std::byte* resident_tile(Plane plane, std::uint64_t tile) const;

    TileStore& store_;
    const HostPlanes& planes_;
    const OffloadPlan& plan_;
    std::span<std::byte> work_;
};

}  // namespace spillway::offload::detail
