// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "cpu_optim/isa.h"
#include "offload/detail/drives/tile_store.h"

namespace spillway::offload::detail {

/// Gives the fp32 masters of a range of the global order, in order, joined from their two halves,
/// or their average, which is stored as it is.
/// Works in the buffer it is given; verifies what comes from the drive (IntegrityError).
class MasterReader {
  public:
    /// The plane of `tile` in host memory, or null if it is on the drive.
    using ResidentTile = std::function<const std::byte*(Plane plane, std::uint64_t tile)>;
    using Visitor =
        std::function<void(TensorId tensor, std::uint64_t first, std::span<const float> values)>;

    /// `buffer`: aligned for direct I/O, at least buffer_bytes(1).
    MasterReader(TileStore& store, ResidentTile resident, cpu_optim::Isa isa,
                 std::span<std::byte> buffer);

    [[nodiscard]] static constexpr std::size_t buffer_bytes(std::size_t tiles) noexcept {
        return tiles * (tile_bytes(Plane::weight) + tile_bytes(Plane::residue) +
                        tile_elements * sizeof(float));
    }
    void visit(ElementRange range, WeightKind kind, const Visitor& visit);

  private:
    void load(TileRange tiles, WeightKind kind);
    void load_plane(Plane plane, TileRange tiles, std::byte* into);

    TileStore& store_;
    ResidentTile resident_;
    cpu_optim::Isa isa_;
    std::size_t capacity_tiles_;
    std::byte* weight_;
    std::byte* residue_;
    float* master_;
};

}  // namespace spillway::offload::detail
