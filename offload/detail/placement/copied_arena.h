// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "cuda/device.h"
#include "nvme/huge_page_arena.h"
#include "offload/detail/placement/memory_ledger.h"

namespace spillway::offload::detail {

/// An arena that a device's copies read and write: counted by the ledger, and page-locked in pieces
/// where the device gains by it. Throws what both throw. The device must outlive it, and no copy
/// may be in flight at its end.
class CopiedArena {
  public:
    CopiedArena(MemoryLedger& ledger, cuda::Device& device, std::string_view name,
                std::size_t bytes)
        : arena_(ledger.arena(name, bytes)),
          registration_(device.register_host(arena_.bytes().data(), arena_.size_bytes())) {}

    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return arena_.bytes(); }

  private:
    nvme::HugePageArena arena_;
    std::unique_ptr<cuda::HostRegistration> registration_;  ///< of the memory above: ends first
};

}  // namespace spillway::offload::detail
