// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/drives/plane_access.h"

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
void PlaneAccess::for_each_part(Plane plane, std::uint64_t first_byte, std::size_t bytes,
                                const std::function<void(const Part&)>& visit) {
    if (bytes == 0)
        return;
    const std::uint64_t one_tile = tile_bytes(plane);
    const auto most_tiles = work_.size() / one_tile;
    const auto end_byte = first_byte + bytes;
    const auto end_tile = (end_byte + one_tile - 1) / one_tile;
    for (auto tile = first_byte / one_tile; tile < end_tile;) {
        auto* const in_memory = resident_tile(plane, tile);
        auto end = tile + 1;
        while (end < end_tile && end - tile < most_tiles &&
               (resident_tile(plane, end) == nullptr) == (in_memory == nullptr))
            ++end;
        const auto part_begin = std::max(first_byte, tile * one_tile);
        const auto part_end = std::min(end_byte, end * one_tile);
        visit({{tile, end},
               in_memory != nullptr ? in_memory : work_.data(),
               in_memory == nullptr,
               static_cast<std::size_t>(part_begin - tile * one_tile),
               static_cast<std::size_t>(part_end - part_begin)});
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

void PlaneAccess::read(Plane plane, std::uint64_t first_byte, std::span<std::byte> out) {
    for_each_part(plane, first_byte, out.size(), [&](const Part& part) {
        if (part.on_drive)
            load(plane, part);
        std::memcpy(out.data(), part.data + part.edge_bytes, part.bytes);
        out = out.subspan(part.bytes);
    });
}

void PlaneAccess::write(Plane plane, std::uint64_t first_byte, std::span<const std::byte> values) {
    for_each_part(plane, first_byte, values.size(), [&](const Part& part) {
        if (part.on_drive)
            load(plane, part);
        std::memcpy(part.data + part.edge_bytes, values.data(), part.bytes);
        values = values.subspan(part.bytes);
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
