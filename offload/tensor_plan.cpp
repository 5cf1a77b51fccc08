// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/tensor_plan.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <stdexcept>

#include <fmt/format.h>

#include "offload/commit_table.h"
#include "offload/detail/drives/tile_store.h"
#include "offload/detail/placement/memory_ledger.h"
#include "offload/detail/placement/spread_order.h"
#include "offload/detail/update/update_rules.h"
#include "offload/detail/update/update_visits.h"

namespace spillway::offload {
namespace {

using detail::arena_bytes;
using detail::plane_gap_bytes;

constexpr std::size_t fp32_tile_bytes = tile_elements * sizeof(float);
/// 4 MiB of fp32: long enough for a drive's full rate.
constexpr std::size_t largest_default_chunk_tiles = 64;

class TensorPlanner {
  public:
    TensorPlanner(const ElementOrder& order, std::span<const ParameterType> types,
                  const TensorPlanRequest& request)
        : order_(order),
          types_(types),
          request_(request),
          tiles_(order.tiles()),
          factor_values_(factor_values(order, request.second_moments)),
          update_memory_(
              detail::update_memory_item(order, request.passes, request.second_moments)) {}

    TensorPlan make() {
        detail::check_passes(request_.passes);
        check_windows(request_.windows);
        plan_.update.passes = request_.passes;
        plan_.update.second_moments = request_.second_moments;
        for (auto chunk_tiles = first_chunk_tiles(); chunk_tiles >= 1; chunk_tiles /= 2) {
            lay_out(chunk_tiles);
            if (fill_host_memory())
                return std::move(plan_);
            if (request_.chunk_bytes != 0)
                break;
        }
        throw PlanRefused("host memory", smallest_need_bytes_, request_.host_bytes,
                          request_.nvme == NvmeTier::absent
                              ? "give a folder on a drive (nvme) so that state can live there, or "
                                "more host memory"
                              : "give more host memory");
    }

  private:
    std::uint64_t first_chunk_tiles() const {
        if (request_.chunk_bytes % fp32_tile_bytes != 0)
            throw std::invalid_argument(
                fmt::format("chunk size {} is not a multiple of a tile, {} bytes",
                            request_.chunk_bytes, fp32_tile_bytes));
        // A chunk of more than the whole model would only ask for larger buffers.
        return std::min<std::uint64_t>(request_.chunk_bytes != 0
                                           ? request_.chunk_bytes / fp32_tile_bytes
                                           : largest_default_chunk_tiles,
                                       tiles_);
    }

    void lay_out(std::uint64_t chunk_tiles) {
        auto& update = plan_.update;
        auto state = state_plane_set(request_.state_planes, request_.state);
        if (request_.averages == WeightAverages::kept)
            state.insert(Plane::average);
        update.planes = state;
        if (std::ranges::find(types_, ParameterType::bf16) != types_.end())
            update.planes.insert(Plane::residue);
        plan_.stored = update.planes;
        if (request_.commits == Commits::possible) {
            plan_.stored.insert(Plane::weight);
            plan_.stored.insert(Plane::residue);
        }
        update.chunk_tiles = chunk_tiles;
        update.chunks = (tiles_ + chunk_tiles - 1) / chunk_tiles;
        update.chunk_planes.assign(update.chunks, state);
        for (TensorId tensor = 0; tensor < types_.size(); ++tensor) {
            if (types_[tensor] != ParameterType::bf16 || order_.range(tensor).size() == 0)
                continue;
            const auto range = order_.range(tensor);
            const auto chunk_elements = chunk_tiles * tile_elements;
            for (auto chunk = range.begin / chunk_elements; chunk * chunk_elements < range.end;
                 ++chunk)
                update.chunk_planes[chunk].insert(Plane::residue);
        }
        plan_.work_bytes = 2 * static_cast<std::size_t>(chunk_tiles) * fp32_tile_bytes;
        update.gradient_resident.assign(update.chunks, 0);
        for (auto& resident : update.resident)
            resident.assign(update.chunks, 0);
    }

    std::size_t chunk_plane_bytes(std::uint64_t chunk, Plane plane) const {
        return static_cast<std::size_t>(plan_.update.chunk_range(chunk, tiles_).size()) *
               tile_bytes(plane);
    }

    /// Each drive beyond the first has chunks of its own under way.
    std::size_t pipeline_slots() const {
        return request_.windows.update_slots * request_.drives +
               detail::kept_slots_of(request_.passes);
    }

    std::size_t gap_bytes() const { return plan_.update.planes.size() * plane_gap_bytes; }

    std::size_t resident_arena_bytes(std::size_t resident_bytes) const {
        return resident_bytes == 0 ? 0 : arena_bytes(resident_bytes + gap_bytes());
    }

    Durability durability() const {
        return request_.commits == Commits::possible ? Durability::on : Durability::off;
    }

    std::size_t update_memory_bytes() const { return update_memory_ ? update_memory_->bytes : 0; }

    std::size_t table_bytes() const {
        const CommitTableShape shape{
            tiles_, static_cast<std::uint32_t>(types_.size()), plan_.stored,
            detail::place_count(tiles_, durability(),
                                detail::region_tiles_for(tiles_, request_.drives)),
            factor_values_};
        const auto store = 2 * detail::tile_store_bytes(tiles_, plan_.stored) +
                           detail::extent_map_bytes(shape.places) +
                           static_cast<std::size_t>(tiles_) * 16;
        return request_.commits == Commits::never
                   ? store
                   : store + arena_bytes(table_capacity_bytes(shape) + 4096) +
                         table_capacity_bytes(shape);
    }

    bool fill_host_memory() {
        auto& update = plan_.update;
        std::size_t everything = 0;
        for (std::uint64_t chunk = 0; chunk < update.chunks; ++chunk) {
            for (const auto plane : update.planes_of(chunk))
                everything += chunk_plane_bytes(chunk, plane);
        }
        const auto fixed = arena_bytes(plan_.work_bytes) + table_bytes() + update_memory_bytes();
        if (fixed + resident_arena_bytes(everything) <= request_.host_bytes) {
            keep(everything);
            finish(0);
            return true;
        }
        std::size_t slot_bytes = 0;
        for (const auto plane : update.planes)
            slot_bytes +=
                static_cast<std::size_t>(update.chunk_tiles) * tile_bytes(plane) + plane_gap_bytes;
        const auto staging = arena_bytes(pipeline_slots() * slot_bytes);
        const auto resident = resident_arena_bytes(everything);
        smallest_need_bytes_ =
            fixed + (request_.nvme == NvmeTier::absent ? resident : std::min(resident, staging));
        if (request_.nvme == NvmeTier::absent || fixed + staging > request_.host_bytes)
            return false;
        // Large chunks only while what passes through takes a small part of the budget.
        if (staging > request_.host_bytes / 4 && update.chunk_tiles > 1 &&
            request_.chunk_bytes == 0)
            return false;
        const auto left = request_.host_bytes - fixed - staging;
        keep(left - std::min(left, nvme::HugePageArena::page_bytes + gap_bytes()));
        finish(staging);
        return true;
    }

    /// Chunks spread evenly over the order, so that the drive has work during the whole update:
    /// were they the first ones, it would rest while those are updated.
    void keep(std::size_t bytes) {
        auto& update = plan_.update;
        for (const auto chunk : detail::spread_order(update.chunks)) {
            for (const auto plane : update.planes_of(chunk)) {
                const auto needed = chunk_plane_bytes(chunk, plane);
                if (needed > bytes)
                    return;
                update.resident[index_of(plane)][chunk] = 1;
                bytes -= needed;
            }
        }
    }

    bool passes_through(std::uint64_t chunk) const {
        const auto& update = plan_.update;
        return std::ranges::any_of(update.planes_of(chunk), [&](Plane plane) {
            return update.resident[index_of(plane)][chunk] == 0;
        });
    }

    void finish(std::size_t staging_bytes) {
        auto& update = plan_.update;
        if (request_.passes != 1)
            update.kept = detail::kept_between_passes(
                order_, update, [&](std::uint64_t chunk) { return passes_through(chunk); });
        std::size_t resident = 0;
        std::uint64_t read = 0;
        std::uint64_t moved = 0;
        for (std::uint64_t chunk = 0; chunk < update.chunks; ++chunk) {
            for (const auto plane : update.planes_of(chunk)) {
                const auto bytes = chunk_plane_bytes(chunk, plane);
                if (update.resident[index_of(plane)][chunk] != 0) {
                    resident += bytes;
                } else {
                    moved += bytes;
                    read += bytes * update.reads_of(chunk);
                }
            }
        }
        update.pipeline_slots = staging_bytes != 0 ? pipeline_slots() : 0;
        update.kept_slots = staging_bytes != 0 ? detail::kept_slots_of(request_.passes) : 0;
        update.host_items = {{"resident planes", resident_arena_bytes(resident)},
                             {"update staging", staging_bytes},
                             {"work buffers", arena_bytes(plan_.work_bytes)},
                             {"tables", table_bytes()}};
        if (update_memory_)
            update.host_items.push_back(*update_memory_);
        update.host_bytes = std::accumulate(
            update.host_items.begin(), update.host_items.end(), std::size_t{0},
            [](std::size_t total, const MemoryItem& item) { return total + item.bytes; });
        update.nvme_read_bytes_per_step = read;
        update.nvme_written_bytes_per_step = moved;
        if (moved != 0 || request_.commits == Commits::possible)
            update.disk_bytes =
                detail::extents_bytes(tiles_, durability(), plan_.stored,
                                      detail::region_tiles_for(tiles_, request_.drives));
    }

    const ElementOrder& order_;
    std::span<const ParameterType> types_;
    const TensorPlanRequest& request_;
    std::uint64_t tiles_;
    std::uint64_t factor_values_;
    std::optional<MemoryItem> update_memory_;
    TensorPlan plan_;
    std::size_t smallest_need_bytes_ = 0;
};

}  // namespace

TensorPlan make_tensor_plan(const ElementOrder& order, std::span<const ParameterType> types,
                            const TensorPlanRequest& request) {
    return TensorPlanner(order, types, request).make();
}

}  // namespace spillway::offload
