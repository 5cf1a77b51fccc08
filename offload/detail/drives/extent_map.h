// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "offload/plan.h"
#include "offload/plane.h"

namespace spillway::offload::detail {

/// Where tiles lie in the extents file of a run on one drive. Plane by plane, copy by copy, then
/// tile by tile: any run of tiles of a plane's copy is one run of bytes, whatever the chunk size.
class ExtentLayout {
  public:
    ExtentLayout(std::uint64_t tiles, Durability durability, PlaneSet planes) noexcept;
    [[nodiscard]] std::uint64_t offset_bytes(Plane plane, unsigned copy,
                                             std::uint64_t tile) const noexcept {
        return bases_[index_of(plane)][copy] + tile * tile_bytes(plane);
    }
    [[nodiscard]] std::uint64_t total_bytes() const noexcept { return total_bytes_; }

  private:
    PerPlane<std::array<std::uint64_t, 2>> bases_{};
    std::uint64_t total_bytes_ = 0;
};

/// Tiles of a region, the unit that lives on one drive when there are several: a fixed run of tiles
/// of the global order, all planes of them. It is chosen when the run is made and does not know
/// chunks, so that another chunk size resumes without moving a byte: a chunk of a region or less
/// (64 tiles, the largest that the planner takes by itself) lies on one drive, a larger one on as
/// many as it has regions. Smaller regions only for models that would not have 16 of them for each
/// drive. 0 for one drive, which has no regions.
[[nodiscard]] std::uint64_t region_tiles_for(std::uint64_t tiles, std::size_t drives) noexcept;

/// Bytes that extents take over all drives: with regions, whole ones.
[[nodiscard]] std::uint64_t extents_bytes(std::uint64_t tiles, Durability durability,
                                          PlaneSet planes, std::uint64_t region_tiles) noexcept;

/// Entries of the table of places: one for each region and copy; 0 without regions.
[[nodiscard]] std::uint64_t place_count(std::uint64_t tiles, Durability durability,
                                        std::uint64_t region_tiles) noexcept;

/// What the tables of an ExtentMap take in host memory.
[[nodiscard]] std::uint64_t extent_map_bytes(std::uint64_t places) noexcept;

/// `count` things over drives in proportion to `rates` (all above 0), as evenly mixed as can be:
/// any run of neighbours holds each drive's share. Returns the drive of each.
[[nodiscard]] std::vector<std::size_t> divide(std::uint64_t count, std::span<const double> rates);

/// Where each copy of each tile lies: drive and offset. With several drives each copy of a region
/// has a slot in the file of one of them; which one is data of the commit table. A copy that
/// neither the last commit nor the newest state uses may get a slot elsewhere: so a region moves
/// when it is written next, and never while somebody reads it.
///
/// Thread-safe for lookups; move_free_copies() may run beside lookups of copies in use.
class ExtentMap {
  public:
    struct Place {
        std::size_t drive = 0;
        std::uint64_t offset_bytes = 0;
    };
    /// `region_tiles` 0: one drive.
    ExtentMap(std::uint64_t tiles, Durability durability, PlaneSet planes,
              std::uint64_t region_tiles) noexcept;

    /// Gives every copy a slot, in proportion to `rates`, one a drive; both of a region on one
    /// drive.
    void assign(std::span<const double> rates);
    /// Places as a commit table has them. Throws std::runtime_error unless there are as many as
    /// needed, each on one of `drives` in a slot of its own.
    void load(std::span<const std::uint64_t> places, std::size_t drives);
    [[nodiscard]] const std::vector<std::uint64_t>& places() const noexcept { return places_; }

    [[nodiscard]] Place place(Plane plane, unsigned copy, std::uint64_t tile) const noexcept;
    /// Tiles from `tile` up to here lie one behind the other in each copy.
    [[nodiscard]] std::uint64_t run_end(std::uint64_t tile) const noexcept;

    [[nodiscard]] std::uint64_t regions() const noexcept { return regions_; }
    [[nodiscard]] TileRange region(std::uint64_t index) const noexcept;
    /// Room that a drive's file must have for the slots in use.
    [[nodiscard]] std::uint64_t file_bytes(std::size_t drive) const;
    [[nodiscard]] std::uint64_t slot_bytes() const noexcept { return slot_bytes_; }
    /// Copies of regions on each of `drives`.
    [[nodiscard]] std::vector<std::uint64_t> copies_on(std::size_t drives) const;

    /// `free_copies`: for each region the copy that is not in use, or `none_free`. Moves some of
    /// those, in the course of calls so many that they are divided in proportion to `rates`; within
    /// a fiftieth nothing moves, and no more than an eighth at a time. `has_room(drive, bytes)`
    /// makes the file that long or says that it cannot be. Returns how many moved.
    template <typename HasRoom>
    std::uint64_t move_free_copies(std::span<const std::uint8_t> free_copies,
                                   std::span<const double> rates, HasRoom has_room);
    static constexpr std::uint8_t none_free = 2;

  private:
    struct Move {
        std::uint64_t entry;
        std::size_t to;
    };
    [[nodiscard]] std::vector<Move> wanted_moves(std::span<const std::uint8_t> free_copies,
                                                 std::span<const double> rates) const;
    [[nodiscard]] std::uint64_t free_slot(std::size_t drive) const;
    void put(std::uint64_t entry, std::size_t drive, std::uint64_t slot);

    std::uint64_t tiles_;
    std::uint64_t copies_;
    std::uint64_t region_tiles_;
    std::uint64_t regions_;
    ExtentLayout plain_;
    PerPlane<std::uint64_t> plane_offsets_{};
    std::uint64_t slot_bytes_ = 0;
    std::vector<std::uint64_t> places_;            ///< drive and slot, by region, then copy
    std::vector<std::vector<std::uint8_t>> used_;  ///< by drive, by slot
};

template <typename HasRoom>
std::uint64_t ExtentMap::move_free_copies(std::span<const std::uint8_t> free_copies,
                                          std::span<const double> rates, HasRoom has_room) {
    std::uint64_t moved = 0;
    for (const auto& [entry, to] : wanted_moves(free_copies, rates)) {
        const auto slot = free_slot(to);
        if (!has_room(to, (slot + 1) * slot_bytes_))
            continue;
        put(entry, to, slot);
        ++moved;
    }
    return moved;
}

}  // namespace spillway::offload::detail
