// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/drives/tile_store.h"

#include <algorithm>
#include <system_error>
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

TileStore::TileStore(std::vector<DriveFile> drives, ExtentMap map, const ElementOrder& order,
                     Durability durability, PlaneSet planes, DriveRatesSeen rates)
    : drives_(std::move(drives)),
      map_(std::move(map)),
      order_(order),
      durability_(durability),
      planes_(planes),
      rates_(std::move(rates)) {
    for (const auto plane : planes) {
        newest_[index_of(plane)].copies.resize(order.tiles());
        newest_[index_of(plane)].checksums.resize(order.tiles());
        committed_copies_[index_of(plane)].resize(order.tiles(), 1);
    }
}

unsigned TileStore::target_copy(Plane plane, std::uint64_t tile) const noexcept {
    return durability_ == Durability::off ? 0u : 1u - committed_copies_[index_of(plane)][tile];
}

/// Submits make(file, offset, run) for every longest run of `tiles` that lies in one piece.
template <typename CopyOf, typename Make>
PendingIo TileStore::for_each_run(Plane plane, TileRange tiles, CopyOf copy_of, Make make) {
    PendingIo pending;
    for (auto begin = tiles.begin; begin < tiles.end;) {
        const unsigned copy = copy_of(begin);
        const auto most = std::min(tiles.end, map_.run_end(begin));
        auto end = begin + 1;
        while (end < most && copy_of(end) == copy)
            ++end;
        const auto [drive, offset_bytes] = map_.place(plane, copy, begin);
        auto& [queue, file] = drives_[drive];
        pending.add(queue->submit(make(file, offset_bytes, TileRange{begin, end})));
        begin = end;
    }
    return pending;
}

PendingIo TileStore::read(Plane plane, TileRange tiles, std::byte* into,
                          nvme::ReadPriority priority) {
    const auto& copies = newest_[index_of(plane)].copies;
    return for_each_run(
        plane, tiles, [&](std::uint64_t tile) { return unsigned{copies[tile]}; },
        [&](nvme::DirectFile& file, std::uint64_t offset_bytes, TileRange run) {
            return nvme::IoRequest::make_read(file, offset_bytes,
                                              {into + (run.begin - tiles.begin) * tile_bytes(plane),
                                               run.size() * tile_bytes(plane)},
                                              priority);
        });
}

PendingIo TileStore::write(Plane plane, TileRange tiles, const std::byte* from) {
    return for_each_run(
        plane, tiles, [&](std::uint64_t tile) { return target_copy(plane, tile); },
        [&](nvme::DirectFile& file, std::uint64_t offset_bytes, TileRange run) {
            return nvme::IoRequest::make_write(
                file, offset_bytes,
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
    const auto place = map_.place(plane, copy, tile);
    throw IntegrityError(fmt::format(
        "{}: plane {}, tile {} read from {} at offset {} has checksum {:016x} and should have "
        "{:016x}; {}",
        tensors_of_tile(order_, tile), plane_name(plane), tile,
        drives_[place.drive].file.path().string(), place.offset_bytes, found, table.checksums[tile],
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
    map_.load(table.places, drives_.size());
    for (const auto plane : planes_) {
        newest_[index_of(plane)] = table.planes[index_of(plane)];
        committed_copies_[index_of(plane)] = table.planes[index_of(plane)].copies;
    }
}

void TileStore::describe(CommitTable& table) const {
    table.stored = planes_;
    table.planes = newest_;
    table.places = map_.places();
}

void TileStore::mark_committed() {
    for (const auto plane : planes_)
        committed_copies_[index_of(plane)] = newest_[index_of(plane)].copies;
    if (drives_.size() > 1 && durability_ == Durability::on && rates_)
        balance();
}

/// All copies in use are named by the commit now, so the others hold nothing that anybody needs.
void TileStore::balance() {
    const auto rates = rates_();
    if (rates.size() != drives_.size())
        return;
    moved_regions_ += map_.move_free_copies(
        free_copies(), rates,
        [this](std::size_t drive, std::uint64_t bytes) { return make_room(drive, bytes); });
}

/// For each region the copy that no tile of no plane has its newest state in.
std::vector<std::uint8_t> TileStore::free_copies() const {
    std::vector<std::uint8_t> free(map_.regions(), ExtentMap::none_free);
    for (std::uint64_t region = 0; region < map_.regions(); ++region) {
        unsigned in_use = 0;
        const auto [begin, end] = map_.region(region);
        for (const auto plane : planes_) {
            for (auto tile = begin; tile < end; ++tile)
                in_use |= 1U << newest_[index_of(plane)].copies[tile];
        }
        if (in_use != 3U)
            free[region] = in_use == 1U ? 1 : 0;
    }
    return free;
}

/// Room beyond what was reserved at the start is taken only where plenty is left; a drive that has
/// none just keeps what it holds.
bool TileStore::make_room(std::size_t drive, std::uint64_t bytes) {
    auto& file = drives_[drive].file;
    const auto size = file.size_bytes();
    if (bytes <= size)
        return true;
    if (nvme::available_bytes(file.path().parent_path()) / 2 < bytes - size)
        return false;
    try {
        file.preallocate(bytes);
        return true;
    } catch (const std::system_error&) {
        return false;
    }
}

void TileStore::flush() {
    PendingIo pending;
    for (auto& [queue, file] : drives_)
        pending.add(queue->submit(nvme::IoRequest::make_flush(file)));
    pending.wait();
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
