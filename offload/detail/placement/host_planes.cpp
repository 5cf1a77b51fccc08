// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/placement/host_planes.h"

namespace spillway::offload::detail {

HostPlanes::HostPlanes(const OffloadPlan& plan, std::uint64_t tiles, MemoryLedger& ledger) {
    const auto chunk_tiles = [&](std::uint64_t chunk) {
        return static_cast<std::size_t>(plan.chunk_range(chunk, tiles).size());
    };
    std::size_t planes_bytes = 0;
    std::size_t gradients_bytes = 0;
    for (std::uint64_t chunk = 0; chunk < plan.chunks; ++chunk) {
        for (const auto plane : plan.planes_of(chunk))
            planes_bytes += plan.resident[index_of(plane)][chunk] != 0
                                ? chunk_tiles(chunk) * tile_bytes(plane)
                                : 0;
        gradients_bytes +=
            plan.gradient_resident[chunk] != 0 ? chunk_tiles(chunk) * gradient_tile_bytes : 0;
    }
    if (planes_bytes != 0)
        planes_bytes += plan.planes.size() * plane_gap_bytes;
    arena_ = ledger.arena("resident planes", planes_bytes + gradients_bytes);

    ArenaCutter cutter(arena_.bytes());
    gradients_.resize(plan.chunks, nullptr);
    for (auto& chunks : planes_)
        chunks.resize(plan.chunks, nullptr);
    // Plane by plane, so that a tensor's part of a plane is one run of memory where all of it is
    // resident.
    for (const auto plane : plan.planes) {
        auto* const begin = cutter.next();
        for (std::uint64_t chunk = 0; chunk < plan.chunks; ++chunk) {
            if (plan.planes_of(chunk).contains(plane) && plan.resident[index_of(plane)][chunk] != 0)
                planes_[index_of(plane)][chunk] =
                    cutter.cut(chunk_tiles(chunk) * tile_bytes(plane));
        }
        if (plane == Plane::weight || plane == Plane::residue || plane == Plane::average)
            note_copied(begin, cutter.next());
        if (planes_bytes != 0)
            cutter.end_plane();
    }
    auto* const gradients_begin = cutter.next();
    for (std::uint64_t chunk = 0; chunk < plan.chunks; ++chunk) {
        if (plan.gradient_resident[chunk] != 0)
            gradients_[chunk] =
                reinterpret_cast<float*>(cutter.cut(chunk_tiles(chunk) * gradient_tile_bytes));
    }
    note_copied(gradients_begin, cutter.next());
}

void HostPlanes::note_copied(std::byte* begin, std::byte* end) {
    if (begin != end)
        copied_.emplace_back(begin, end);
}

}  // namespace spillway::offload::detail
