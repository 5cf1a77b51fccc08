// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cpu_optim/adamw.h"
#include "offload/detail/gradient_spill.h"
#include "offload/detail/tile_store.h"
#include "offload/plan.h"

namespace spillway::offload::detail {

/// Per tensor: the numbers of this step.
using UpdateCoefficients = std::vector<cpu_optim::AdamWCoefficients>;

/// One chunk as the fused pass sees it: where its planes are, and which of them came from the drive
/// and go back to it.
struct ChunkPlanes {
    TileRange tiles;
    std::array<std::byte*, all_planes.size()> data{};
    std::array<bool, all_planes.size()> on_drive{};
    const float* gradient = nullptr;
    bool gradient_was_spilled = false;
    /// Per plane, per tile: checksum of the new contents, for planes on the drive.
    std::array<std::span<std::uint64_t>, all_planes.size()> checksums;
};

/// The threads of the update, and the pass they run tile by tile while a tile is in cache: verify
/// checksums, scale, optimizer, new weight, new checksums.
class FusedUpdate {
  public:
    FusedUpdate(const TileStore& store, const GradientSpill* spill, std::size_t threads,
                cpu_optim::Isa isa);
    ~FusedUpdate();
    FusedUpdate(const FusedUpdate&) = delete;
    FusedUpdate& operator=(const FusedUpdate&) = delete;

    /// Updates the chunk in place. Throws IntegrityError, or std::runtime_error naming a tensor
    /// whose new weight has no finite bf16 half.
    void run(const ChunkPlanes& chunk, const UpdateCoefficients& coefficients);

    /// body(i) for i in [0, count) on the update's threads.
    void for_each(std::uint64_t count, const std::function<void(std::uint64_t)>& body);

    [[nodiscard]] cpu_optim::Isa isa() const noexcept { return isa_; }

  private:
    class Arena;
    void update_tile(const ChunkPlanes& chunk, std::uint64_t index,
                     const UpdateCoefficients& coefficients) const;
    void verify_tile(const ChunkPlanes& chunk, std::uint64_t index) const;

    const TileStore& store_;
    const GradientSpill* spill_;
    cpu_optim::Isa isa_;
    std::unique_ptr<Arena> arena_;
};

}  // namespace spillway::offload::detail
