// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/plan.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <ranges>

#include <fmt/format.h>

#include "offload/detail/activations/activation_needs.h"
#include "offload/detail/drives/tile_store.h"
#include "offload/detail/gradients/gradient_scans.h"
#include "offload/detail/placement/memory_ledger.h"
#include "offload/detail/placement/plan_traffic.h"
#include "offload/detail/placement/spread_order.h"
#include "offload/detail/update/update_rules.h"
#include "offload/detail/update/update_visits.h"
#include "offload/detail/weights/unit_slots.h"

namespace spillway::offload {
namespace {

using detail::arena_bytes;
using detail::plane_gap_bytes;

constexpr std::size_t fp32_tile_bytes = tile_elements * sizeof(float);
constexpr std::uint64_t largest_default_chunk_tiles =
    64;  // 4 MiB of fp32: long enough for a drive's full rate
constexpr std::size_t pooled_gradient_slots =
    4;  // two chunks open at a unit's edge, one filling, one leaving

constexpr std::size_t commit_record_bytes = 4096;  // a unit of its own

/// What waits or rests in host memory if it can: a place in the planner's ranking.
using Rank = std::size_t;
constexpr Rank weight_rank = 0;
constexpr Rank residue_rank = 1;
constexpr Rank gradient_rank = 2;  // which has no plane

/// Dearest first: a working weight is read three times and written once per step, the others once
/// each; gradients before moments, because a commit does not write them.
std::vector<std::optional<Plane>> ranked(PlaneSet planes) {
    std::vector<std::optional<Plane>> ranking{Plane::weight, Plane::residue, std::nullopt};
    for (const auto plane : planes) {
        if (plane != Plane::weight && plane != Plane::residue)
            ranking.push_back(plane);
    }
    return ranking;
}

class Planner {
  public:
    Planner(const ElementOrder& order, std::span<const Unit> units, const PlanRequest& request)
        : order_(order),
          units_(units),
          request_(request),
          tiles_(order.tiles()),
          ranking_(ranked(request.planes)),
          factor_values_(factor_values(order, request.second_moments)),
          update_memory_(
              detail::update_memory_item(order, request.passes, request.second_moments)) {}

    OffloadPlan make();

  private:
    void plan_device();
    void give_spare_device_memory(std::size_t bytes);
    void try_chunk_sizes();
    bool try_chunk_tiles(std::uint64_t chunk_tiles);
    bool try_prefix(std::size_t whole_ranks);
    void fill_partly(Rank rank, std::size_t bytes);
    void set_all(Rank rank, bool resident);
    [[nodiscard]] std::vector<MemoryItem> host_items(std::size_t whole_ranks) const;
    [[nodiscard]] std::size_t forced_gradient_bytes() const;
    [[nodiscard]] bool is_forced(std::uint64_t chunk) const;
    [[nodiscard]] CommitTableShape table_shape() const {
        return {tiles_, static_cast<std::uint32_t>(order_.tensors().size()), plan_.planes,
                detail::place_count(tiles_, request_.durability,
                                    detail::region_tiles_for(tiles_, request_.drives)),
                factor_values_};
    }
    [[nodiscard]] std::size_t resident_arena_bytes(std::size_t resident_bytes) const {
        return resident_bytes == 0
                   ? 0
                   : arena_bytes(resident_bytes + plan_.planes.size() * plane_gap_bytes);
    }
    void add_activations(std::vector<MemoryItem>& items) const;
    void finish_host_items(std::size_t whole_ranks);
    [[nodiscard]] std::size_t host_left_bytes() const;
    [[nodiscard]] std::size_t pipeline_slots() const {
        return request_.windows.update_slots * request_.drives +
               detail::kept_slots_of(request_.passes);
    }
    void choose_kept();
    /// Averages, which passes read too, come last in the ranking.
    [[nodiscard]] bool weights_stream(std::size_t whole_ranks) const {
        return whole_ranks <= residue_rank ||
               (request_.planes.contains(Plane::average) && whole_ranks < ranking_.size());
    }
    [[nodiscard]] auto ranks() const { return std::views::iota(Rank{0}, ranking_.size()); }
    [[nodiscard]] std::size_t ranked_tile_bytes(Rank rank) const {
        return ranking_[rank] ? tile_bytes(*ranking_[rank]) : gradient_tile_bytes;
    }
    [[nodiscard]] std::vector<std::uint8_t>& residency(Rank rank);

    const ElementOrder& order_;
    std::span<const Unit> units_;
    const PlanRequest& request_;
    std::uint64_t tiles_;
    std::vector<std::optional<Plane>> ranking_;
    std::uint64_t factor_values_;
    std::optional<MemoryItem> update_memory_;
    OffloadPlan plan_;
    std::size_t smallest_need_bytes_ = static_cast<std::size_t>(-1);
};

std::size_t sum(const std::vector<MemoryItem>& items) {
    return std::accumulate(
        items.begin(), items.end(), std::size_t{0},
        [](std::size_t total, const MemoryItem& item) { return total + item.bytes; });
}

void Planner::plan_device() {
    plan_.weight_slots = detail::group_by_size(order_, units_);
    for (const auto unit : request_.gradient_uses) {
        const auto bytes =
            static_cast<std::size_t>(unit_range(order_, units_[unit]).size()) * sizeof(float);
        plan_.unit_gradient_bytes =
            std::max(plan_.unit_gradient_bytes, (bytes + 4095) / 4096 * 4096);
    }
    const auto weights = detail::slot_bytes(plan_.weight_slots);
    plan_.unit_gradient_slots = 2;
    if (weights + 2 * plan_.unit_gradient_bytes > request_.device_bytes)
        plan_.unit_gradient_slots = 1;
    const auto needed = weights + plan_.unit_gradient_slots * plan_.unit_gradient_bytes;
    if (needed > request_.device_bytes)
        throw PlanRefused("device memory", needed, request_.device_bytes,
                          "raise the device's memory or its cap, or take a smaller hidden size");
    plan_.device_bytes = needed;
}

/// More slots keep weights on the device from forward to backward.
void Planner::give_spare_device_memory(std::size_t bytes) {
    for (auto& slots : plan_.weight_slots) {
        const auto wanted = slots.units.size() - slots.slots;
        const auto given = std::min(wanted, bytes / slots.slot_bytes);
        slots.slots += given;
        bytes -= given * slots.slot_bytes;
        plan_.device_bytes += given * slots.slot_bytes;
    }
}

bool Planner::is_forced(std::uint64_t chunk) const {
    const auto range = plan_.chunk_range(chunk, tiles_);
    const auto span = order_.tensors_in({range.begin * tile_elements, range.end * tile_elements});
    for (auto tensor = span.first; tensor < span.last; ++tensor) {
        if (order_.tensors()[tensor].contributions > 1)
            return true;
    }
    return false;
}

std::size_t Planner::forced_gradient_bytes() const {
    std::size_t tiles = 0;
    for (std::uint64_t chunk = 0; chunk < plan_.chunks; ++chunk) {
        if (is_forced(chunk))
            tiles += plan_.chunk_range(chunk, tiles_).size();
    }
    return tiles * fp32_tile_bytes;
}

/// Host memory with the first `whole_ranks` of the ranking whole in host memory and nothing
/// of the others, beside what passes through.
std::vector<MemoryItem> Planner::host_items(std::size_t whole_ranks) const {
    const auto tiles = static_cast<std::size_t>(tiles_);
    const auto chunk_tiles = static_cast<std::size_t>(plan_.chunk_tiles);
    const auto whole = [&](Rank rank) { return rank < whole_ranks; };
    std::vector<MemoryItem> items;
    std::size_t staged_tile_bytes = 0;
    std::size_t staged_planes = 0;
    std::size_t resident = 0;
    for (const auto rank : ranks()) {
        if (rank == gradient_rank && request_.timing == UpdateTiming::as_completed)
            continue;
        (whole(rank) ? resident : staged_tile_bytes) += ranked_tile_bytes(rank);
        staged_planes += static_cast<std::size_t>(!whole(rank));
    }
    items.push_back({"resident planes", resident_arena_bytes(resident * tiles)});
    if (!whole(gradient_rank) || request_.timing == UpdateTiming::as_completed) {
        items.push_back(
            {"gradients with several contributions", arena_bytes(forced_gradient_bytes())});
        items.push_back({"gradient assembly",
                         arena_bytes(pooled_gradient_slots * chunk_tiles * fp32_tile_bytes)});
    }
    if (staged_tile_bytes != 0)
        items.push_back(
            {"update staging", arena_bytes(pipeline_slots() * (chunk_tiles * staged_tile_bytes +
                                                               staged_planes * plane_gap_bytes))});
    if (weights_stream(whole_ranks))
        items.push_back({"weight staging", arena_bytes(request_.windows.weight_buffers *
                                                       chunk_tiles * fp32_tile_bytes)});
    if (request_.device_kind == cuda::MemoryKind::device)
        items.push_back({"gradient contribution", arena_bytes(chunk_tiles * fp32_tile_bytes)});
    // A master and all planes of a chunk, at most.
    const std::size_t worked = plan_.planes.contains(Plane::average) ? 6 : 5;
    items.push_back({"work buffers", arena_bytes(chunk_tiles * worked * fp32_tile_bytes)});
    const auto shape = table_shape();
    items.push_back({"tables", 2 * detail::tile_store_bytes(tiles_, plan_.planes) +
                                   arena_bytes(table_capacity_bytes(shape) + 4096) +
                                   table_capacity_bytes(shape) +
                                   detail::gradient_scans_bytes(tiles_, order_.tensors().size()) +
                                   detail::extent_map_bytes(shape.places)});
    if (update_memory_)
        items.push_back(*update_memory_);
    add_activations(items);
    return items;
}

void Planner::add_activations(std::vector<MemoryItem>& items) const {
    const auto needs = detail::activation_needs(request_.activations);
    const auto of_all = [&](std::size_t bytes) { return request_.activation_stores * bytes; };
    if (needs.resident_bytes != 0)
        items.push_back({"layer inputs", of_all(arena_bytes(needs.resident_bytes))});
    if (needs.staging_bytes != 0)
        items.push_back({"staging of layer inputs", of_all(arena_bytes(needs.staging_bytes))});
    if (needs.table_bytes != 0)
        items.push_back({"tables of layer inputs", of_all(needs.table_bytes)});
}

std::vector<std::uint8_t>& Planner::residency(Rank rank) {
    const auto plane = ranking_[rank];
    return plane ? plan_.resident[index_of(*plane)] : plan_.gradient_resident;
}

void Planner::set_all(Rank rank, bool resident) {
    residency(rank).assign(plan_.chunks, static_cast<std::uint8_t>(resident));
}

/// Keeps as many chunks of what has this rank as `bytes` hold.
void Planner::fill_partly(Rank rank, std::size_t bytes) {
    // An arena has gaps and is rounded up to whole huge pages; keep that much aside.
    bytes -=
        std::min(bytes, nvme::HugePageArena::page_bytes + plan_.planes.size() * plane_gap_bytes);
    for (const auto chunk : detail::spread_order(plan_.chunks)) {
        const auto chunk_bytes = static_cast<std::size_t>(plan_.chunk_range(chunk, tiles_).size()) *
                                 ranked_tile_bytes(rank);
        if (residency(rank)[chunk] != 0 || chunk_bytes > bytes)
            continue;
        residency(rank)[chunk] = 1;
        bytes -= chunk_bytes;
    }
}

std::size_t Planner::host_left_bytes() const {
    const auto taken = request_.device_kind == cuda::MemoryKind::host ? plan_.device_bytes : 0;
    return request_.host_bytes - std::min(request_.host_bytes, taken);
}

bool Planner::try_prefix(std::size_t whole_ranks) {
    const auto fixed = sum(host_items(whole_ranks));
    smallest_need_bytes_ = std::min(smallest_need_bytes_, fixed);
    if (fixed > host_left_bytes())
        return false;
    for (const auto rank : ranks())
        set_all(rank, rank < whole_ranks);
    if (request_.timing == UpdateTiming::as_completed)
        set_all(gradient_rank, false);  // they never wait, except between contributions
    for (std::uint64_t chunk = 0; chunk < plan_.chunks; ++chunk) {
        if (is_forced(chunk))
            plan_.gradient_resident[chunk] = 1;
    }
    const bool everything = whole_ranks == ranking_.size();
    if (!everything) {
        const auto next = whole_ranks;
        const bool gradients_pass = request_.timing == UpdateTiming::as_completed;
        if (!(next == gradient_rank && gradients_pass))
            fill_partly(next, host_left_bytes() - fixed);
    }
    finish_host_items(whole_ranks);
    return true;
}

/// Replaces the estimate by what is really allocated with the residency just chosen.
void Planner::finish_host_items(std::size_t whole_ranks) {
    plan_.host_items = host_items(whole_ranks);
    std::size_t resident = 0;
    for (const auto rank : ranks()) {
        for (std::uint64_t chunk = 0; chunk < plan_.chunks; ++chunk) {
            const bool counted_apart =
                rank == gradient_rank && is_forced(chunk) &&
                (whole_ranks <= gradient_rank || request_.timing == UpdateTiming::as_completed);
            if (residency(rank)[chunk] != 0 && !counted_apart)
                resident += static_cast<std::size_t>(plan_.chunk_range(chunk, tiles_).size()) *
                            ranked_tile_bytes(rank);
        }
    }
    plan_.host_items.front().bytes = resident_arena_bytes(resident);
    plan_.host_bytes = sum(plan_.host_items);
    const auto is_whole = [](const std::vector<std::uint8_t>& chunks) {
        return std::all_of(chunks.begin(), chunks.end(),
                           [](std::uint8_t resident_chunk) { return resident_chunk != 0; });
    };
    const bool gradients_pass = !is_whole(plan_.gradient_resident);
    const bool all_planes_resident = std::ranges::all_of(
        plan_.planes, [&](Plane plane) { return is_whole(plan_.resident[index_of(plane)]); });
    plan_.gradient_slots = gradients_pass ? pooled_gradient_slots : 0;
    const bool gradients_spill = gradients_pass && request_.timing == UpdateTiming::after_norm;
    plan_.pipeline_slots = all_planes_resident && !gradients_spill ? 0 : pipeline_slots();
    plan_.kept_slots = plan_.pipeline_slots == 0 ? 0 : detail::kept_slots_of(request_.passes);
    const bool averages_pass = plan_.planes.contains(Plane::average) &&
                               !is_whole(plan_.resident[index_of(Plane::average)]);
    plan_.weight_read_buffers =
        is_whole(residency(weight_rank)) && is_whole(residency(residue_rank)) && !averages_pass
            ? 0
            : request_.windows.weight_buffers;
}

bool Planner::try_chunk_tiles(std::uint64_t chunk_tiles) {
    plan_.chunk_tiles = chunk_tiles;
    plan_.chunks = (tiles_ + chunk_tiles - 1) / chunk_tiles;
    for (const auto rank : ranks())
        set_all(rank, false);
    if (try_prefix(ranking_.size()))
        return true;
    if (request_.nvme == NvmeTier::absent)
        return false;
    for (auto whole = ranking_.size(); whole-- > 0;) {
        const bool skipped =
            whole == gradient_rank + 1 && request_.timing == UpdateTiming::as_completed;
        if (!skipped && try_prefix(whole))
            return true;
    }
    return false;
}

void Planner::try_chunk_sizes() {
    if (request_.chunk_bytes != 0) {
        if (request_.chunk_bytes % fp32_tile_bytes != 0)
            throw std::invalid_argument(
                fmt::format("chunk size {} is not a multiple of a tile, {} bytes",
                            request_.chunk_bytes, fp32_tile_bytes));
        if (try_chunk_tiles(request_.chunk_bytes / fp32_tile_bytes))
            return;
    } else {
        for (auto chunk_tiles = usual_chunk_tiles(request_.host_bytes, request_.drives);
             chunk_tiles >= 1; chunk_tiles /= 2) {
            if (try_chunk_tiles(chunk_tiles))
                return;
        }
    }
    const auto device = request_.device_kind == cuda::MemoryKind::host ? plan_.device_bytes : 0;
    throw PlanRefused(
        "host memory", smallest_need_bytes_ + device, request_.host_bytes,
        request_.nvme == NvmeTier::absent
            ? "give an --nvme folder so that state can live on a drive, or raise --host-mem"
            : "raise --host-mem, or take a smaller model");
}

/// With the residency just chosen.
void Planner::choose_kept() {
    if (request_.passes == 1)
        return;
    plan_.kept = detail::kept_between_passes(order_, plan_, [&](std::uint64_t chunk) {
        return plan_.gradient_resident[chunk] == 0 ||
               std::ranges::any_of(plan_.planes, [&](Plane plane) {
                   return plan_.resident[index_of(plane)][chunk] == 0;
               });
    });
}

OffloadPlan Planner::make() {
    detail::check_passes(request_.passes);
    check_windows(request_.windows);
    if (request_.passes != 1 && request_.timing == UpdateTiming::as_completed)
        throw std::invalid_argument(
            fmt::format("an update of {} passes is planned as gradients are completed: its whole "
                        "tensors must wait, after the norm",
                        request_.passes));
    plan_.planes = request_.planes;
    plan_.passes = request_.passes;
    plan_.second_moments = request_.second_moments;
    plan_device();
    try_chunk_sizes();
    const bool everything = plan_.weight_read_buffers == 0 && plan_.pipeline_slots == 0;
    if (request_.device_kind == cuda::MemoryKind::device)
        give_spare_device_memory(request_.device_bytes - plan_.device_bytes);
    else if (everything)
        give_spare_device_memory(std::min(request_.device_bytes - plan_.device_bytes,
                                          host_left_bytes() - plan_.host_bytes));
    plan_.device_items = {
        {"weights of units", detail::slot_bytes(plan_.weight_slots)},
        {"gradients of units", plan_.unit_gradient_slots * plan_.unit_gradient_bytes},
    };
    plan_.disk_bytes += detail::extents_bytes(tiles_, request_.durability, plan_.planes,
                                              detail::region_tiles_for(tiles_, request_.drives));
    plan_.gradient_uses = request_.gradient_uses;
    plan_.activations = request_.activations;
    plan_.activation_stores = request_.activation_stores;
    choose_kept();
    detail::count_traffic(order_, units_, request_, plan_);
    // Of the client's state, for which a table has room, it writes as much as there is: little.
    plan_.commit_bytes += table_capacity_bytes(table_shape()) -
                          CommitTable::client_state_limit_bytes + commit_record_bytes;
    return std::move(plan_);
}

}  // namespace

PlanRefused::PlanRefused(std::string_view tier, std::size_t needed, std::size_t available,
                         std::string_view advice)
    : std::runtime_error(fmt::format("{}: {} bytes are needed at least and {} are available; {}",
                                     tier, needed, available, advice)),
      needed_bytes(needed),
      available_bytes(available) {}

std::uint64_t usual_chunk_tiles(std::size_t host_bytes, std::size_t drives) noexcept {
    auto chunk_tiles = largest_default_chunk_tiles;
    while (chunk_tiles > 1 && chunk_tiles * fp32_tile_bytes * (19 + 10 * drives) > host_bytes / 6)
        chunk_tiles /= 2;
    return chunk_tiles;
}

OffloadPlan make_plan(const ElementOrder& order, std::span<const Unit> units,
                      const PlanRequest& request) {
    return Planner(order, units, request).make();
}

}  // namespace spillway::offload
