// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nvme/io_queue.h"
#include "offload/commit_table.h"
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

/// Where tiles lie in the extents file. Plane by plane, copy by copy, then tile by tile: any run of
/// tiles of a plane's copy is one run of bytes, whatever the chunk size.
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

/// The stored planes: which copy of each tile is newest, which one the last commit names, and its
/// checksum. Steps read the newest copy and write the one that the last commit does not name.
/// Thread-safe for calls on different tiles; the caller orders those on the same tile.
class TileStore {
  public:
    /// Without `extents` nothing may be read, written or flushed: all planes live in host memory.
    TileStore(nvme::IoQueue& queue, std::optional<nvme::DirectFile> extents,
              const ElementOrder& order, Durability durability, PlaneSet planes);

    /// Starts reading the newest copies of `tiles` into `into` (tiles.size() * tile_bytes(plane)
    /// bytes).
    [[nodiscard]] PendingIo read(Plane plane, TileRange tiles, std::byte* into);
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
    /// The newest copies are now named by a durable commit.
    void mark_committed();
    void flush();

    [[nodiscard]] const ElementOrder& order() const noexcept { return order_; }
    [[nodiscard]] PlaneSet planes() const noexcept { return planes_; }

  private:
    template <typename CopyOf, typename Start>
    PendingIo for_each_run(TileRange tiles, CopyOf copy_of, Start start);
    [[nodiscard]] unsigned target_copy(Plane plane, std::uint64_t tile) const noexcept;

    nvme::IoQueue& queue_;
    std::optional<nvme::DirectFile> extents_;
    const ElementOrder& order_;
    ExtentLayout layout_;
    Durability durability_;
    PlaneSet planes_;
    PerPlane<PlaneTable> newest_;
    PerPlane<std::vector<std::uint8_t>> committed_copies_;
};

/// What the tables of a store take in host memory.
[[nodiscard]] std::size_t tile_store_bytes(std::uint64_t tiles, PlaneSet planes) noexcept;

/// "tensor 'a' .. 'b'" or "tensor 'a'": for messages.
[[nodiscard]] std::string tensors_of_tile(const ElementOrder& order, std::uint64_t tile);

}  // namespace spillway::offload::detail
