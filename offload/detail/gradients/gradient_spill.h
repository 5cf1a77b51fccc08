// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "nvme/io_queue.h"
#include "offload/detail/drives/drive_files.h"
#include "offload/detail/drives/tile_store.h"
#include "offload/plan.h"

namespace spillway::offload::detail {

/// The files in which gradients wait that host memory has no room for: one on each drive, without a
/// name, chunks divided in proportion to `rates`. Thread-safe for calls on different chunks.
class GradientSpill {
  public:
    /// Nothing is created if the plan spills nothing.
    GradientSpill(const DriveQueues& queues, std::vector<std::filesystem::path> folders,
                  const OffloadPlan& plan, std::uint64_t tiles, std::span<const double> rates);

    /// Checksums the tiles and starts the write.
    [[nodiscard]] PendingIo write(std::uint64_t chunk, const std::byte* gradient);
    [[nodiscard]] PendingIo read(std::uint64_t chunk, std::byte* into);
    [[nodiscard]] std::size_t drive_of(std::uint64_t chunk) const noexcept {
        return places_[chunk].drive;
    }
    /// Throws IntegrityError.
    void verify(const ElementOrder& order, std::uint64_t tile,
                std::span<const std::byte> data) const;

  private:
    struct Place {
        std::size_t drive = 0;
        std::uint64_t offset_bytes = 0;
    };
    [[nodiscard]] DriveFile& file_of(std::uint64_t chunk) { return files_[drive_of(chunk)]; }

    const OffloadPlan& plan_;
    std::uint64_t tiles_;
    std::vector<DriveFile> files_;          // by drive; none if nothing spills
    std::vector<Place> places_;             // per chunk
    std::vector<std::uint64_t> checksums_;  // per tile
};

}  // namespace spillway::offload::detail
