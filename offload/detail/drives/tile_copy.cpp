// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/drives/tile_copy.h"

#include <algorithm>
#include <vector>

#include "nvme/huge_page_arena.h"

namespace spillway::offload::detail {
namespace {

constexpr std::size_t piece_bytes = std::size_t{1} << 20;
constexpr std::size_t slots = tile_copy_bytes / piece_bytes;
/// Pieces that are being read while as many others are being written.
constexpr std::size_t reads_ahead = slots / 2;

struct Piece {
    Plane plane = Plane::weight;
    TileRange tiles;
    [[nodiscard]] std::size_t bytes() const noexcept { return tiles.size() * tile_bytes(plane); }
};

/// A region lies on one drive: its pieces are taken a whole turn apart, so that those in flight
/// lie on all.
void append_pieces(Plane plane, std::uint64_t tiles, std::uint64_t region_tiles,
                   std::vector<Piece>& pieces) {
    const auto most = std::max<std::uint64_t>(piece_bytes / tile_bytes(plane), 1);
    const auto turns = std::max<std::uint64_t>(region_tiles / most, 1);
    for (std::uint64_t turn = 0; turn < turns; ++turn) {
        for (auto begin = turn * most; begin < tiles; begin += turns * most)
            pieces.push_back({plane, {begin, std::min(tiles, begin + most)}});
    }
}

/// Room for one piece, and the I/O that is going on with it. Waits for that at its end.
struct Slot {
    std::byte* data = nullptr;
    Piece piece;
    PendingIo io;
};

void pass_on(const TileCopy& copy, Slot& slot) {
    slot.io.wait();
    const auto [plane, tiles] = slot.piece;
    for (auto tile = tiles.begin; tile < tiles.end; ++tile)
        copy.from.verify(plane, tile,
                         {slot.data + (tile - tiles.begin) * tile_bytes(plane), tile_bytes(plane)});
    slot.io = copy.to.write(plane, tiles, slot.data);
}

void finish(const TileCopy& copy, Slot& slot) {
    if (slot.piece.tiles.size() == 0)
        return;
    slot.io.wait();
    const auto [plane, tiles] = slot.piece;
    copy.to.wrote(
        plane, tiles,
        std::span(copy.table.planes[index_of(plane)].checksums).subspan(tiles.begin, tiles.size()));
    const auto bytes = slot.piece.bytes();
    slot.piece = {};
    copy.advanced(bytes);
}

}  // namespace

void copy_tiles(const TileCopy& copy) {
    const nvme::HugePageArena memory(tile_copy_bytes);
    std::vector<Piece> pieces;
    for (const auto plane : copy.from.planes())
        append_pieces(plane, copy.from.order().tiles(), copy.region_tiles, pieces);
    std::vector<Slot> ring(slots);  // before the memory ends, so do its transfers
    for (std::size_t slot = 0; slot < slots; ++slot)
        ring[slot].data = memory.bytes().data() + slot * piece_bytes;
    for (std::size_t at = 0; at < pieces.size() + reads_ahead; ++at) {
        if (at < pieces.size()) {
            auto& slot = ring[at % slots];
            finish(copy, slot);
            slot.piece = pieces[at];
            slot.io = copy.from.read(slot.piece.plane, slot.piece.tiles, slot.data);
        }
        if (at >= reads_ahead)
            pass_on(copy, ring[(at - reads_ahead) % slots]);
    }
    for (std::size_t at = 0; at < slots; ++at)
        finish(copy, ring[(pieces.size() + at) % slots]);
}

}  // namespace spillway::offload::detail
