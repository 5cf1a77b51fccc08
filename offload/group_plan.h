// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "offload/plan.h"

namespace spillway::offload {

/// Of one device among `ranks` alike.
struct GroupRequest {
    unsigned ranks = 2;
    std::size_t device_bytes = 0;  ///< for weights and gradients, on top of what the client takes
    std::vector<std::size_t> training_uses;  ///< as in PlanRequest
    std::vector<std::size_t> gradient_uses;
};

/// What each device of a group holds (DeviceGroup). Placement only.
struct GroupPlan {
    unsigned ranks = 2;
    std::vector<UnitSlotClass> gathered;  ///< slots for whole units, put together of all shares
    std::vector<std::uint8_t> kept;       ///< per unit: its share stays through a pass
    std::size_t gradient_slots = 0;       ///< each as large as the largest unit
    std::size_t gradient_bytes = 0;
    std::size_t landing_bytes = 0;  ///< for the rank's share of a gradient on its way to the host

    /// Units that a training pass asks of the engine, in order: those whose shares are not kept.
    std::vector<std::size_t> fetched;

    std::vector<MemoryItem> device_items;
    std::size_t device_bytes = 0;                ///< sum of device_items: of each device
    std::uint64_t to_device_bytes_per_step = 0;  ///< of all devices together
    std::uint64_t to_host_bytes_per_step = 0;
};

/// Throws PlanRefused for "device memory".
[[nodiscard]] GroupPlan plan_group(const ElementOrder& order, std::span<const Unit> units,
                                   const GroupRequest& request);

}  // namespace spillway::offload
