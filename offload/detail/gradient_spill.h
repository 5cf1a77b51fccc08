// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "nvme/io_queue.h"
#include "offload/detail/tile_store.h"
#include "offload/plan.h"

namespace spillway::offload::detail {

/// The file in which gradients wait that host memory has no room for, `gradients.0` in the extents
/// folder. Made anew by every run: no commit names it. Thread-safe for calls on different chunks.
class GradientSpill {
  public:
    /// Nothing is created if the plan spills nothing.
    GradientSpill(nvme::IoQueue& queue, const std::filesystem::path& folder,
                  const OffloadPlan& plan, std::uint64_t tiles);

    /// Checksums the tiles and starts the write.
    [[nodiscard]] PendingIo write(std::uint64_t chunk, const std::byte* gradient);
    [[nodiscard]] PendingIo read(std::uint64_t chunk, std::byte* into);
    /// Throws IntegrityError.
    void verify(const ElementOrder& order, std::uint64_t tile,
                std::span<const std::byte> data) const;

  private:
    nvme::IoQueue& queue_;
    const OffloadPlan& plan_;
    std::uint64_t tiles_;
    std::optional<nvme::DirectFile> file_;
    std::vector<std::uint64_t> offsets_bytes_;  // per chunk
    std::vector<std::uint64_t> checksums_;      // per tile
};

}  // namespace spillway::offload::detail
