// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <span>

#include "offload/detail/drives/tile_store.h"
#include "offload/detail/placement/host_planes.h"
#include "offload/detail/threads/update_threads.h"
#include "offload/offload_engine.h"

namespace spillway::offload::detail {

struct BootstrapContext {
    TileStore& store;
    const HostPlanes& planes;
    const OffloadPlan& plan;
    UpdateThreads& threads;
    std::span<std::byte> work;  ///< bootstrap_bytes(plan)
};

/// An fp32 master and the stored planes of a chunk.
[[nodiscard]] constexpr std::size_t bootstrap_bytes(const OffloadPlan& plan) noexcept {
    std::size_t tile = tile_elements * sizeof(float);
    for (const auto plane : plan.planes)
        tile += tile_bytes(plane);
    return static_cast<std::size_t>(plan.chunk_tiles) * tile;
}

/// Fills every chunk with `fill`'s values and zero moments, on the drive and where it is resident.
void fill_new_run(const BootstrapContext& context, const OffloadEngine::InitialValues& fill);

/// Reads and verifies the planes that are resident.
void load_resident_planes(const BootstrapContext& context);

}  // namespace spillway::offload::detail
