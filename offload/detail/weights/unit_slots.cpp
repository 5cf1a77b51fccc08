// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/weights/unit_slots.h"

#include <algorithm>
#include <numeric>

namespace spillway::offload::detail {
namespace {

std::uint64_t unit_tiles(const ElementOrder& order, const Unit& unit) {
    const auto range = unit_range(order, unit);
    return (range.end + tile_elements - 1) / tile_elements - range.begin / tile_elements;
}

}  // namespace

std::vector<UnitSlotClass> group_by_size(const ElementOrder& order, std::span<const Unit> units) {
    std::vector<std::size_t> by_size(units.size());
    std::iota(by_size.begin(), by_size.end(), std::size_t{0});
    std::stable_sort(by_size.begin(), by_size.end(), [&](std::size_t a, std::size_t b) {
        return unit_tiles(order, units[a]) > unit_tiles(order, units[b]);
    });
    std::vector<UnitSlotClass> classes;
    for (const auto unit : by_size) {
        const auto bytes = static_cast<std::size_t>(unit_tiles(order, units[unit])) *
                           tile_elements * sizeof(float);
        if (classes.empty() || bytes * 2 <= classes.back().slot_bytes)
            classes.push_back({bytes, 0, {}});
        classes.back().units.push_back(unit);
        classes.back().slots = std::min<std::size_t>(classes.back().units.size(), 2);
    }
    return classes;
}

std::vector<TileRange> tiles_of_units(const ElementOrder& order, std::span<const Unit> units) {
    std::vector<TileRange> tiles;
    for (const auto& unit : units) {
        const auto range = unit_range(order, unit);
        tiles.push_back(
            {range.begin / tile_elements, (range.end + tile_elements - 1) / tile_elements});
    }
    return tiles;
}

std::size_t slot_bytes(const std::vector<UnitSlotClass>& classes) noexcept {
    std::size_t bytes = 0;
    for (const auto& slots : classes)
        bytes += slots.slots * slots.slot_bytes;
    return bytes;
}

}  // namespace spillway::offload::detail
