// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "offload/plan.h"

namespace spillway::offload::detail {

/// Units of similar size, largest first, with the fewest slots that let one be fetched while the
/// other is in use.
[[nodiscard]] std::vector<UnitSlotClass> group_by_size(const ElementOrder& order,
                                                       std::span<const Unit> units);

/// The tiles that each unit reaches into.
[[nodiscard]] std::vector<TileRange> tiles_of_units(const ElementOrder& order,
                                                    std::span<const Unit> units);

/// Of all slots together.
[[nodiscard]] std::size_t slot_bytes(const std::vector<UnitSlotClass>& classes) noexcept;

}  // namespace spillway::offload::detail
