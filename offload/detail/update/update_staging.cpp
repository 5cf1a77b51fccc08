// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/update/update_staging.h"

#include "nvme/huge_page_arena.h"

namespace spillway::offload::detail {
namespace {

struct Staged {
    PlaneSet planes;
    bool has_gradients = false;
};

Staged staged_of(const OffloadPlan& plan, const HostPlanes& planes, HomelessGradients gradients) {
    Staged staged;
    for (std::uint64_t chunk = 0; chunk < plan.chunks; ++chunk) {
        for (const auto plane : plan.planes_of(chunk))
            if (planes.plane(plane, chunk) == nullptr)
                staged.planes.insert(plane);
        staged.has_gradients |=
            gradients == HomelessGradients::spilled && planes.gradient(chunk) == nullptr;
    }
    return staged;
}

}  // namespace

UpdateStaging::UpdateStaging(const OffloadPlan& plan, const HostPlanes& planes,
                             HomelessGradients gradients, MemoryLedger& ledger)
    : slots_(plan.pipeline_slots) {
    const auto chunk_tiles = static_cast<std::size_t>(plan.chunk_tiles);
    const auto staged = staged_of(plan, planes, gradients);
    std::size_t slot_bytes = staged.has_gradients ? chunk_tiles * gradient_tile_bytes : 0;
    for (const auto plane : staged.planes)
        slot_bytes += chunk_tiles * tile_bytes(plane) + plane_gap_bytes;
    make_pool(slot_bytes, ledger);
    for (std::size_t index = 0; index < leases_.size(); ++index) {
        ArenaCutter cutter(leases_[index].bytes());
        for (const auto plane : staged.planes) {
            slots_[index].planes[index_of(plane)] = cutter.cut(chunk_tiles * tile_bytes(plane));
            cutter.end_plane();
        }
        if (staged.has_gradients)
            slots_[index].gradient = cutter.cut(chunk_tiles * gradient_tile_bytes);
    }
}

void UpdateStaging::make_pool(std::size_t slot_bytes, MemoryLedger& ledger) {
    if (slot_bytes == 0 || slots_.empty())
        return;
    ledger.count("update staging", arena_bytes(slots_.size() * slot_bytes));
    pool_ = std::make_unique<nvme::BufferPool>(
        nvme::BufferPool::Options{.buffer_bytes = slot_bytes,
                                  .buffers = slots_.size(),
                                  .best_pages = nvme::PageKind::transparent_huge});
    for (std::size_t index = 0; index < slots_.size(); ++index)
        leases_.push_back(pool_->acquire());
}

std::vector<std::span<std::byte>> UpdateStaging::pieces() const {
    return pool_ ? pool_->pieces() : std::vector<std::span<std::byte>>{};
}

std::string UpdateStaging::note() const {
    return pool_ ? pool_->note() : "";
}

}  // namespace spillway::offload::detail
