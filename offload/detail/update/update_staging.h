// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "nvme/buffer_pool.h"
#include "offload/detail/placement/host_planes.h"
#include "offload/detail/placement/memory_ledger.h"
#include "offload/plan.h"
#include "offload/plane.h"

namespace spillway::offload::detail {

/// Where gradients are that no resident place is set aside for.
enum class HomelessGradients {
    elsewhere,  ///< whoever makes them hands them to the update
    spilled,    ///< on the drive, from which the update reads them
};

/// The memory in which chunks pass between drive and update, one buffer of a pool a slot. Made
/// before the queues that move it, which may introduce it to the kernel once and for all. Used by
/// one thread.
class UpdateStaging {
  public:
    /// A chunk's place for each plane that any chunk has on the drive; null for the others.
    struct Slot {
        PerPlane<std::byte*> planes{};
        std::byte* gradient = nullptr;  ///< null where no gradient is spilled
    };

    UpdateStaging(const OffloadPlan& plan, const HostPlanes& planes, HomelessGradients gradients,
                  MemoryLedger& ledger);

    [[nodiscard]] std::span<const Slot> slots() const noexcept { return slots_; }
    /// For nvme::FixedResources: no slot is parted. Empty when everything is resident.
    [[nodiscard]] std::vector<std::span<std::byte>> pieces() const;
    /// Why it lies on small pages, "" if it does not.
    [[nodiscard]] std::string note() const;

  private:
    void make_pool(std::size_t slot_bytes, MemoryLedger& ledger);

    std::unique_ptr<nvme::BufferPool> pool_;
    std::vector<nvme::BufferLease> leases_;
    std::vector<Slot> slots_;
};

}  // namespace spillway::offload::detail
