// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/plane_access.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace spillway::offload::detail {

std::byte* PlaneAccess::resident_tile(Plane plane, std::uint64_t tile) const {
    const auto chunk = tile / plan_.chunk_tiles;
    auto* const data = planes_.plane(plane, chunk);
    return data == nullptr ? nullptr
                           : data + (tile - chunk * plan_.chunk_tiles) * tile_bytes(plane);
}

std::byte* PlaneAccess::resident(Plane plane, ElementRange range) const {
    const auto first = range.begin / tile_elements;
    const auto last = (range.end + tile_elements - 1) / tile_elements;
    for (auto tile = first; tile < last; ++tile) {
        if (resident_tile(plane, tile) == nullptr)
            return nullptr;
    }
    return first == last ? nullptr
                         : resident_tile(plane, first) +
                               (range.begin - first * tile_elements) * element_bytes(plane);
}

/// In pieces of one residency, no longer than the work buffer.
void PlaneAccess::for_each_part(Plane plane, ElementRange range,
                                const std::function<void(const Part&)>& visit) {
    if (range.size() == 0)
        return;
    const auto most_tiles = work_.size() / tile_bytes(plane);
    const auto end_tile = (range.end + tile_elements - 1) / tile_elements;
    for (auto tile = range.begin / tile_elements; tile < end_tile;) {
        auto* const in_memory = resident_tile(plane, tile);
        auto end = tile + 1;
        while (end < end_tile && end - tile < most_tiles &&
               (resident_tile(plane, end) == nullptr) == (in_memory == nullptr))
            ++end;
        const auto begin_element = std::max(range.begin, tile * tile_elements);
        const auto end_element = std::min(range.end, end * tile_elements);
        visit(
            {{tile, end},
             in_memory != nullptr ? in_memory : work_.data(),
             in_memory == nullptr,
             static_cast<std::size_t>(begin_element - tile * tile_elements) * element_bytes(plane),
             static_cast<std::size_t>(end_element - begin_element) * element_bytes(plane)});
        tile = end;
    }
}

void PlaneAccess::load(Plane plane, const Part& part) {
    store_.read(plane, part.tiles, part.data).wait();
    for (auto tile = part.tiles.begin; tile < part.tiles.end; ++tile)
        store_.verify(
            plane, tile,
            {part.data + (tile - part.tiles.begin) * tile_bytes(plane), tile_bytes(plane)});
}

void PlaneAccess::read(Plane plane, ElementRange range, std::byte* out) {
    for_each_part(plane, range, [&](const Part& part) {
        if (part.on_drive)
            load(plane, part);
        std::memcpy(out, part.data + part.edge_bytes, part.bytes);
        out += part.bytes;
    });
}

void PlaneAccess::write(Plane plane, ElementRange range, const std::byte* values) {
    for_each_part(plane, range, [&](const Part& part) {
        if (part.on_drive)
            load(plane, part);
        std::memcpy(part.data + part.edge_bytes, values, part.bytes);
        values += part.bytes;
        if (!part.on_drive)
            return;
        std::vector<std::uint64_t> checksums;
        for (std::uint64_t index = 0; index < part.tiles.size(); ++index)
            checksums.push_back(
                tile_checksum({part.data + index * tile_bytes(plane), tile_bytes(plane)}));
        store_.write(plane, part.tiles, part.data).wait();
        store_.wrote(plane, part.tiles, checksums);
    });
}

}  // namespace spillway::offload::detail
