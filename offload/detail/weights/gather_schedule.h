// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "offload/plan.h"

namespace spillway::offload::detail {

/// One use of a unit's weights in a pass.
struct GatherUse {
    std::size_t unit = 0;
    std::size_t slot = 0;  ///< counted over all classes in their order
    bool gathers = false;  ///< else the slot holds the unit already
    bool fetches = false;  ///< from the engine; else from the shares that were kept
};

/// Where the units of a pass that begins with nothing are put together. A use takes the slot that
/// holds its unit, else that of its class which was used longest ago: a client holds two units at
/// most, one behind the other. `kept`, per unit: its share stays once it has been fetched.
[[nodiscard]] std::vector<GatherUse> gather_schedule(std::span<const std::size_t> uses,
                                                     std::span<const UnitSlotClass> classes,
                                                     std::span<const std::uint8_t> kept);

}  // namespace spillway::offload::detail
