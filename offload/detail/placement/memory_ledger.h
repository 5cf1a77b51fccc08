// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "nvme/huge_page_arena.h"

namespace spillway::offload::detail {

/// Counts what the engine really allocates in host memory against what its plan said. Used by the
/// constructing thread only.
class MemoryLedger {
  public:
    explicit MemoryLedger(std::size_t limit_bytes) : limit_bytes_(limit_bytes) {}

    /// Notes an allocation; throws std::logic_error naming it if the sum passes the limit.
    void count(std::string_view name, std::size_t bytes);
    /// An arena, counted as large as it really is.
    [[nodiscard]] nvme::HugePageArena arena(std::string_view name, std::size_t bytes);

    [[nodiscard]] std::size_t total_bytes() const noexcept { return total_bytes_; }

  private:
    std::size_t limit_bytes_;
    std::size_t total_bytes_ = 0;
};

/// An update reads and writes the planes of a chunk side by side. Planes that lie a large power of
/// two apart compete for the same cache sets and DRAM banks (two planes 256 MiB apart: an update
/// takes 1.4 times as long), so each is followed by a gap. Whole pages, for direct I/O; no power of
/// two, so that sums of gaps differ too.
inline constexpr std::size_t plane_gap_bytes = std::size_t{5} * 4096;

/// Cuts an arena in pieces of 4 KiB granularity, in order. The pieces live as long as the arena.
class ArenaCutter {
  public:
    explicit ArenaCutter(std::span<std::byte> bytes) : rest_(bytes) {}
    /// Throws std::logic_error when the arena is used up.
    [[nodiscard]] std::byte* cut(std::size_t bytes);
    /// Where the next cut begins.
    [[nodiscard]] std::byte* next() const noexcept { return rest_.data(); }
    /// Leaves plane_gap_bytes between what was cut and what is cut next.
    void end_plane() { static_cast<void>(cut(plane_gap_bytes)); }

  private:
    std::span<std::byte> rest_;
};

/// What an arena of `bytes` really takes.
[[nodiscard]] constexpr std::size_t arena_bytes(std::size_t bytes) noexcept {
    constexpr auto page = nvme::HugePageArena::page_bytes;
    return (bytes + page - 1) / page * page;
}

}  // namespace spillway::offload::detail
