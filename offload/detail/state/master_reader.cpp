// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/state/master_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cpu_optim/split_master.h"

namespace spillway::offload::detail {

MasterReader::MasterReader(TileStore& store, ResidentTile resident, cpu_optim::Isa isa,
                           std::span<std::byte> buffer)
    : store_(store),
      resident_(std::move(resident)),
      isa_(isa),
      capacity_tiles_(buffer.size() / buffer_bytes(1)),
      weight_(buffer.data()),
      residue_(weight_ + capacity_tiles_ * tile_bytes(Plane::weight)),
      master_(reinterpret_cast<float*>(residue_ + capacity_tiles_ * tile_bytes(Plane::residue))) {}

void MasterReader::load_plane(Plane plane, TileRange tiles, std::byte* into) {
    PendingIo pending;
    for (auto tile = tiles.begin; tile < tiles.end; ++tile) {
        auto* const to = into + (tile - tiles.begin) * tile_bytes(plane);
        if (const auto* const from = resident_(plane, tile))
            std::memcpy(to, from, tile_bytes(plane));
        else
            pending.append(store_.read(plane, {tile, tile + 1}, to));
    }
    pending.wait();
    for (auto tile = tiles.begin; tile < tiles.end; ++tile) {
        if (resident_(plane, tile) == nullptr)
            store_.verify(plane, tile,
                          {into + (tile - tiles.begin) * tile_bytes(plane), tile_bytes(plane)});
    }
}

void MasterReader::load(TileRange tiles, WeightKind kind) {
    if (kind == WeightKind::averaged) {
        load_plane(Plane::average, tiles, reinterpret_cast<std::byte*>(master_));
        return;
    }
    load_plane(Plane::weight, tiles, weight_);
    load_plane(Plane::residue, tiles, residue_);
    const auto elements = static_cast<std::size_t>(tiles.size() * tile_elements);
    cpu_optim::join_master(isa_, {reinterpret_cast<const std::uint16_t*>(weight_), elements},
                           {reinterpret_cast<const std::int16_t*>(residue_), elements},
                           {master_, elements});
}

void MasterReader::visit(ElementRange range, WeightKind kind, const Visitor& visit) {
    const auto& order = store_.order();
    const auto last_tile = (range.end + tile_elements - 1) / tile_elements;
    for (auto tile = range.begin / tile_elements; tile < last_tile; tile += capacity_tiles_) {
        const TileRange tiles{tile, std::min(last_tile, tile + capacity_tiles_)};
        load(tiles, kind);
        const ElementRange loaded{std::max(range.begin, tiles.begin * tile_elements),
                                  std::min(range.end, tiles.end * tile_elements)};
        const auto span = order.tensors_in(loaded);
        for (auto tensor = span.first; tensor < span.last; ++tensor) {
            const auto whole = order.range(tensor);
            const ElementRange part{std::max(whole.begin, loaded.begin),
                                    std::min(whole.end, loaded.end)};
            visit(tensor, part.begin - whole.begin,
                  {master_ + (part.begin - tiles.begin * tile_elements),
                   static_cast<std::size_t>(part.size())});
        }
    }
}

}  // namespace spillway::offload::detail
