// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nvme/huge_page_arena.h"
#include "offload/detail/placement/memory_ledger.h"
#include "offload/plan.h"

namespace spillway::offload::detail {

/// The chunk planes and waiting gradients that live in host memory for the whole run. Addresses
/// never change; who may touch what when is the chunk board's business.
class HostPlanes {
  public:
    HostPlanes(const OffloadPlan& plan, std::uint64_t tiles, MemoryLedger& ledger);

    /// The resident plane of a chunk, or null if it lives on the drive.
    [[nodiscard]] std::byte* plane(Plane plane, std::uint64_t chunk) const noexcept {
        return planes_[index_of(plane)][chunk];
    }
    /// The place where a chunk's gradient waits, or null if it is put together elsewhere. Starts as
    /// zeros.
    [[nodiscard]] float* gradient(std::uint64_t chunk) const noexcept { return gradients_[chunk]; }

    /// What a device's copies read and write: weight and residue planes, and gradients. In whole
    /// pages of 4 KiB, up to three runs.
    [[nodiscard]] std::span<const std::span<std::byte>> copied() const noexcept { return copied_; }

  private:
    void note_copied(std::byte* begin, std::byte* end);

    nvme::HugePageArena arena_;
    PerPlane<std::vector<std::byte*>> planes_;
    std::vector<float*> gradients_;
    std::vector<std::span<std::byte>> copied_;
};

}  // namespace spillway::offload::detail
