// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/tile_store.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <xxhash.h>

#include "offload/offload_engine.h"

namespace spillway::offload::detail {

std::uint64_t tile_checksum(std::span<const std::byte> tile) noexcept {
    return XXH3_64bits(tile.data(), tile.size());
}

bool PendingIo::done() const noexcept {
    for (const auto& ticket : tickets_) {
        if (!ticket.done())
            return false;
    }
    return true;
}

void PendingIo::wait() {
    for (auto& ticket : tickets_)
        ticket.wait().throw_if_error();
    tickets_.clear();
}

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

TileStore::TileStore(nvme::IoQueue& queue, std::optional<nvme::DirectFile> extents,
                     const ElementOrder& order, Durability durability, PlaneSet planes)
    : queue_(queue),
      extents_(std::move(extents)),
      order_(order),
      layout_(order.tiles(), durability, planes),
      durability_(durability),
      planes_(planes) {
    for (const auto plane : planes) {
        newest_[index_of(plane)].copies.resize(order.tiles());
        newest_[index_of(plane)].checksums.resize(order.tiles());
        committed_copies_[index_of(plane)].resize(order.tiles(), 1);
    }
}

unsigned TileStore::target_copy(Plane plane, std::uint64_t tile) const noexcept {
    return durability_ == Durability::off ? 0u : 1u - committed_copies_[index_of(plane)][tile];
}

/// Calls start(copy, run) for every longest run of `tiles` that lies in one copy.
template <typename CopyOf, typename Start>
PendingIo TileStore::for_each_run(TileRange tiles, CopyOf copy_of, Start start) {
    PendingIo pending;
    for (auto begin = tiles.begin; begin < tiles.end;) {
        const unsigned copy = copy_of(begin);
        auto end = begin + 1;
        while (end < tiles.end && copy_of(end) == copy)
            ++end;
        pending.add(queue_.submit(start(copy, TileRange{begin, end})));
        begin = end;
    }
    return pending;
}

PendingIo TileStore::read(Plane plane, TileRange tiles, std::byte* into) {
    const auto& copies = newest_[index_of(plane)].copies;
    return for_each_run(
        tiles, [&](std::uint64_t tile) { return unsigned{copies[tile]}; },
        [&](unsigned copy, TileRange run) {
            return nvme::IoRequest::make_read(*extents_,
                                              layout_.offset_bytes(plane, copy, run.begin),
                                              {into + (run.begin - tiles.begin) * tile_bytes(plane),
                                               run.size() * tile_bytes(plane)});
        });
}

PendingIo TileStore::write(Plane plane, TileRange tiles, const std::byte* from) {
    return for_each_run(
        tiles, [&](std::uint64_t tile) { return target_copy(plane, tile); },
        [&](unsigned copy, TileRange run) {
            return nvme::IoRequest::make_write(
                *extents_, layout_.offset_bytes(plane, copy, run.begin),
                {from + (run.begin - tiles.begin) * tile_bytes(plane),
                 run.size() * tile_bytes(plane)});
        });
}

void TileStore::wrote(Plane plane, TileRange tiles, std::span<const std::uint64_t> checksums) {
    auto& table = newest_[index_of(plane)];
    for (auto tile = tiles.begin; tile < tiles.end; ++tile) {
        table.copies[tile] = static_cast<std::uint8_t>(target_copy(plane, tile));
        table.checksums[tile] = checksums[tile - tiles.begin];
    }
}

void TileStore::verify(Plane plane, std::uint64_t tile, std::span<const std::byte> data) const {
    const auto& table = newest_[index_of(plane)];
    const auto found = tile_checksum(data);
    if (found == table.checksums[tile])
        return;
    const unsigned copy = table.copies[tile];
    const bool committed = committed_copies_[index_of(plane)][tile] == copy;
    throw IntegrityError(fmt::format(
        "{}: plane {}, tile {} read from {} at offset {} has checksum {:016x} and should have "
        "{:016x}; {}",
        tensors_of_tile(order_, tile), plane_name(plane), tile, extents_->path().string(),
        layout_.offset_bytes(plane, copy, tile), found, table.checksums[tile],
        committed ? "this is the copy that the last commit names: these elements are lost, and "
                    "with them the run; "
                    "restore the folders from a backup or start again from an export"
                  : "this copy is newer than the last commit: run again with --resume to go on "
                    "from that commit"));
}

void TileStore::assume_zeros() {
    const std::vector<std::byte> zeros(tile_bytes(Plane::m));
    for (const auto plane : planes_) {
        const auto checksum = tile_checksum({zeros.data(), tile_bytes(plane)});
        std::ranges::fill(newest_[index_of(plane)].checksums, checksum);
    }
}

void TileStore::load(const CommitTable& table) {
    for (const auto plane : planes_) {
        newest_[index_of(plane)] = table.planes[index_of(plane)];
        committed_copies_[index_of(plane)] = table.planes[index_of(plane)].copies;
    }
}

void TileStore::describe(CommitTable& table) const {
    table.stored = planes_;
    table.planes = newest_;
}

void TileStore::mark_committed() {
    for (const auto plane : planes_)
        committed_copies_[index_of(plane)] = newest_[index_of(plane)].copies;
}

void TileStore::flush() {
    queue_.submit(nvme::IoRequest::make_flush(*extents_)).wait().throw_if_error();
}

std::size_t tile_store_bytes(std::uint64_t tiles, PlaneSet planes) noexcept {
    return static_cast<std::size_t>(tiles) * planes.size() * (1 + 8 + 1);
}

std::string tensors_of_tile(const ElementOrder& order, std::uint64_t tile) {
    const auto span = order.tensors_in({tile * tile_elements, (tile + 1) * tile_elements});
    if (span.first == span.last)
        return "padding";
    const auto& tensors = order.tensors();
    if (span.last - span.first == 1)
        return fmt::format("tensor '{}'", tensors[span.first].name);
    return fmt::format("tensors '{}' to '{}'", tensors[span.first].name,
                       tensors[span.last - 1].name);
}

}  // namespace spillway::offload::detail
