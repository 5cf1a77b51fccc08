// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/drives/extent_map.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include <fmt/format.h>

namespace spillway::offload::detail {
namespace {

constexpr std::uint64_t largest_region_tiles = 64;
constexpr std::uint64_t least_regions_a_drive = 16;
/// A place: the drive above, the slot below.
constexpr unsigned slot_bits = 48;
constexpr std::uint64_t slot_mask = (std::uint64_t{1} << slot_bits) - 1;

constexpr std::size_t drive_of(std::uint64_t place) {
    return static_cast<std::size_t>(place >> slot_bits);
}

}  // namespace

ExtentLayout::ExtentLayout(std::uint64_t tiles, Durability durability, PlaneSet planes) noexcept {
    for (const auto plane : planes) {
        auto& bases = bases_[index_of(plane)];
        bases[0] = total_bytes_;
        total_bytes_ += tiles * tile_bytes(plane);
        bases[1] = total_bytes_;
        if (durability == Durability::on)
            total_bytes_ += tiles * tile_bytes(plane);
    }
}

std::uint64_t region_tiles_for(std::uint64_t tiles, std::size_t drives) noexcept {
    if (drives <= 1)
        return 0;
    auto region = largest_region_tiles;
    while (region > 1 && tiles / region < least_regions_a_drive * drives)
        region /= 2;
    return region;
}

std::uint64_t extents_bytes(std::uint64_t tiles, Durability durability, PlaneSet planes,
                            std::uint64_t region_tiles) noexcept {
    const auto whole =
        region_tiles == 0 ? tiles : (tiles + region_tiles - 1) / region_tiles * region_tiles;
    return ExtentLayout(whole, durability, planes).total_bytes();
}

std::uint64_t place_count(std::uint64_t tiles, Durability durability,
                          std::uint64_t region_tiles) noexcept {
    if (region_tiles == 0)
        return 0;
    return (tiles + region_tiles - 1) / region_tiles * (durability == Durability::on ? 2 : 1);
}

std::uint64_t extent_map_bytes(std::uint64_t places) noexcept {
    return places *
           (sizeof(std::uint64_t) + sizeof(std::uint8_t));  // the place, and its slot's use
}

std::vector<std::size_t> divide(std::uint64_t count, std::span<const double> rates) {
    const auto sum = std::accumulate(rates.begin(), rates.end(), 0.0);
    std::vector<double> due(rates.size(), 0);
    std::vector<std::size_t> drives;
    drives.reserve(count);
    for (std::uint64_t i = 0; i < count; ++i) {
        for (std::size_t drive = 0; drive < rates.size(); ++drive)
            due[drive] += rates[drive] / sum;
        const auto next = std::max_element(due.begin(), due.end());
        *next -= 1;
        drives.push_back(static_cast<std::size_t>(next - due.begin()));
    }
    return drives;
}

ExtentMap::ExtentMap(std::uint64_t tiles, Durability durability, PlaneSet planes,
                     std::uint64_t region_tiles) noexcept
    : tiles_(tiles),
      copies_(durability == Durability::on ? 2 : 1),
      region_tiles_(region_tiles),
      regions_(region_tiles == 0 ? 0 : (tiles + region_tiles - 1) / region_tiles),
      plain_(tiles, durability, planes) {
    for (const auto plane : planes) {
        plane_offsets_[index_of(plane)] = slot_bytes_;
        slot_bytes_ += region_tiles_ * tile_bytes(plane);
    }
}

void ExtentMap::assign(std::span<const double> rates) {
    if (region_tiles_ == 0)
        return;
    places_.assign(regions_ * copies_, 0);
    used_.assign(rates.size(), {});
    const auto drives = divide(regions_, rates);
    for (std::uint64_t region = 0; region < regions_; ++region) {
        for (std::uint64_t copy = 0; copy < copies_; ++copy) {
            auto& used = used_[drives[region]];
            places_[region * copies_ + copy] =
                std::uint64_t{drives[region]} << slot_bits | used.size();
            used.push_back(1);
        }
    }
}

void ExtentMap::load(std::span<const std::uint64_t> places, std::size_t drives) {
    if (places.size() != regions_ * copies_)
        throw std::runtime_error(fmt::format("the commit table has {} places, needed are {}",
                                             places.size(), regions_ * copies_));
    if (region_tiles_ == 0)
        return;
    std::vector<std::vector<std::uint8_t>> used(drives);
    for (const auto place : places) {
        const auto drive = drive_of(place);
        const auto slot = place & slot_mask;
        // A file never has more slots than there are copies and moves of them under way.
        if (drive >= drives || slot > 2 * places.size())
            throw std::runtime_error(
                fmt::format("the commit table names slot {} of drive {}; there are {} drives", slot,
                            drive, drives));
        if (used[drive].size() <= slot)
            used[drive].resize(slot + 1, 0);
        if (used[drive][slot]++ != 0)
            throw std::runtime_error(
                fmt::format("the commit table names slot {} of drive {} twice", slot, drive));
    }
    places_.assign(places.begin(), places.end());
    used_ = std::move(used);
}

ExtentMap::Place ExtentMap::place(Plane plane, unsigned copy, std::uint64_t tile) const noexcept {
    if (region_tiles_ == 0)
        return {0, plain_.offset_bytes(plane, copy, tile)};
    const auto found = places_[tile / region_tiles_ * copies_ + copy];
    return {drive_of(found), (found & slot_mask) * slot_bytes_ + plane_offsets_[index_of(plane)] +
                                 tile % region_tiles_ * tile_bytes(plane)};
}

std::uint64_t ExtentMap::run_end(std::uint64_t tile) const noexcept {
    return region_tiles_ == 0 ? tiles_
                              : std::min(tiles_, (tile / region_tiles_ + 1) * region_tiles_);
}

TileRange ExtentMap::region(std::uint64_t index) const noexcept {
    return {index * region_tiles_, std::min(tiles_, (index + 1) * region_tiles_)};
}

std::uint64_t ExtentMap::file_bytes(std::size_t drive) const {
    return region_tiles_ == 0 ? plain_.total_bytes() : used_[drive].size() * slot_bytes_;
}

std::vector<std::uint64_t> ExtentMap::copies_on(std::size_t drives) const {
    std::vector<std::uint64_t> counts(drives, 0);
    for (const auto place : places_)
        ++counts[drive_of(place)];
    return counts;
}

std::vector<ExtentMap::Move> ExtentMap::wanted_moves(std::span<const std::uint8_t> free_copies,
                                                     std::span<const double> rates) const {
    std::vector<std::vector<std::uint64_t>> on(rates.size());
    std::uint64_t count = 0;
    for (std::uint64_t region = 0; region < regions_; ++region) {
        if (free_copies[region] == none_free)
            continue;
        const auto entry = region * copies_ + free_copies[region];
        on[drive_of(places_[entry])].push_back(entry);
        ++count;
    }
    const auto sum = std::accumulate(rates.begin(), rates.end(), 0.0);
    std::vector<std::int64_t> excess(rates.size());
    for (std::size_t drive = 0; drive < rates.size(); ++drive)
        excess[drive] =
            static_cast<std::int64_t>(on[drive].size()) -
            static_cast<std::int64_t>(rates[drive] / sum * static_cast<double>(count) + 0.5);
    auto left = std::max<std::uint64_t>(count / 8, 1);
    std::vector<Move> moves;
    for (std::size_t from = 0; from < rates.size(); ++from) {
        if (excess[from] <= 0 || static_cast<std::uint64_t>(excess[from]) <= count / 50)
            continue;
        const auto total = static_cast<std::uint64_t>(excess[from]);
        const auto size = std::uint64_t{on[from].size()};
        // Evenly spread ones, so that what stays is evenly spread too.
        for (std::uint64_t i = 0; i < total && left > 0; ++i, --left) {
            const auto to = static_cast<std::size_t>(
                std::min_element(excess.begin(), excess.end()) - excess.begin());
            if (excess[to] >= 0)
                break;
            moves.push_back({on[from][i * size / total], to});
            ++excess[to];
        }
    }
    return moves;
}

std::uint64_t ExtentMap::free_slot(std::size_t drive) const {
    const auto& used = used_[drive];
    return static_cast<std::uint64_t>(std::find(used.begin(), used.end(), std::uint8_t{0}) -
                                      used.begin());
}

void ExtentMap::put(std::uint64_t entry, std::size_t drive, std::uint64_t slot) {
    used_[drive_of(places_[entry])][places_[entry] & slot_mask] = 0;
    if (used_[drive].size() <= slot)
        used_[drive].resize(slot + 1, 0);
    used_[drive][slot] = 1;
    places_[entry] = std::uint64_t{drive} << slot_bits | slot;
}

}  // namespace spillway::offload::detail
