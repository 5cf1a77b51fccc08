// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nvme/io_queue.h"
#include "offload/commit_table.h"
#include "offload/detail/drives/extent_map.h"
#include "offload/element_order.h"
#include "offload/plan.h"
#include "offload/plane.h"

namespace spillway::offload::detail {

/// Checksum of a stored tile.
[[nodiscard]] std::uint64_t tile_checksum(std::span<const std::byte> tile) noexcept;

/// Requests in flight for one run of tiles. Waiting twice is harmless.
class PendingIo {
  public:
    PendingIo() = default;
    void add(nvme::IoTicket ticket) { tickets_.push_back(std::move(ticket)); }
    void append(PendingIo other) {
        for (auto& ticket : other.tickets_)
            tickets_.push_back(std::move(ticket));
    }
    [[nodiscard]] bool done() const noexcept;
    /// Waits for all; throws the first error.
    void wait();

  private:
    std::vector<nvme::IoTicket> tickets_;
};

/// The file on one drive that holds tiles, and the queue through which it is read and written.
struct DriveFile {
    nvme::IoQueue* queue = nullptr;
    nvme::DirectFile file;
};

/// Bytes per second of each drive under reads and writes in turn, as seen lately; empty: not enough
/// was moved to say.
using DriveRatesSeen = std::function<std::vector<double>()>;

/// The stored planes: which copy of each tile is newest, which one the last commit names, and its
/// checksum. Steps read the newest copy and write the one that the last commit does not name.
/// Thread-safe for calls on different tiles; the caller orders those on the same tile.
class TileStore {
  public:
    /// Without drives nothing may be read, written or flushed: all planes live in host memory.
    /// Files need the room that `map` says; `rates` is asked after each commit, with several
    /// drives.
    TileStore(std::vector<DriveFile> drives, ExtentMap map, const ElementOrder& order,
              Durability durability, PlaneSet planes, DriveRatesSeen rates = {});

    /// Starts reading the newest copies of `tiles` into `into` (tiles.size() * tile_bytes(plane)
    /// bytes).
    [[nodiscard]] PendingIo read(Plane plane, TileRange tiles, std::byte* into,
                                 nvme::ReadPriority priority = nvme::ReadPriority::demand);
    /// Starts writing `tiles`; after the returned I/O ended well, call wrote().
    [[nodiscard]] PendingIo write(Plane plane, TileRange tiles, const std::byte* from);
    /// The write of `tiles` is over: it is the newest copy, with these checksums.
    void wrote(Plane plane, TileRange tiles, std::span<const std::uint64_t> checksums);

    /// Throws IntegrityError unless `data` is what was stored last.
    void verify(Plane plane, std::uint64_t tile, std::span<const std::byte> data) const;

    /// Nothing was written yet: every tile reads as zeros.
    void assume_zeros();
    void load(const CommitTable& table);
    /// Copies and checksums of the newest state, for a commit.
    void describe(CommitTable& table) const;
    /// The newest copies are now named by a durable commit. With several drives, copies that are
    /// free now may get a place on another one, where the next write puts them.
    void mark_committed();
    /// All drives.
    void flush();
    /// Copies of regions on each drive; empty with one drive.
    [[nodiscard]] std::vector<std::uint64_t> copies_on_drives() const {
        return map_.copies_on(drives_.size());
    }
    /// Copies of regions that changed their drive.
    [[nodiscard]] std::uint64_t moved_regions() const noexcept { return moved_regions_.load(); }

    [[nodiscard]] std::size_t drives() const noexcept { return drives_.size(); }
    /// Where the newest copy of a tile lies.
    [[nodiscard]] std::size_t drive_of(Plane plane, std::uint64_t tile) const noexcept {
        return map_.place(plane, newest_[index_of(plane)].copies[tile], tile).drive;
    }

    [[nodiscard]] const ElementOrder& order() const noexcept { return order_; }
    [[nodiscard]] PlaneSet planes() const noexcept { return planes_; }

  private:
    template <typename CopyOf, typename Make>
    PendingIo for_each_run(Plane plane, TileRange tiles, CopyOf copy_of, Make make);
    void balance();
    [[nodiscard]] std::vector<std::uint8_t> free_copies() const;
    [[nodiscard]] bool make_room(std::size_t drive, std::uint64_t bytes);
    [[nodiscard]] unsigned target_copy(Plane plane, std::uint64_t tile) const noexcept;

    std::vector<DriveFile> drives_;
    ExtentMap map_;
    const ElementOrder& order_;
    Durability durability_;
    PlaneSet planes_;
    PerPlane<PlaneTable> newest_;
    PerPlane<std::vector<std::uint8_t>> committed_copies_;
    DriveRatesSeen rates_;
    std::atomic<std::uint64_t> moved_regions_{0};
};

/// What the tables of a store take in host memory.
[[nodiscard]] std::size_t tile_store_bytes(std::uint64_t tiles, PlaneSet planes) noexcept;

/// "tensor 'a' .. 'b'" or "tensor 'a'": for messages.
[[nodiscard]] std::string tensors_of_tile(const ElementOrder& order, std::uint64_t tile);

}  // namespace spillway::offload::detail
