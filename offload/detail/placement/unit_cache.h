// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace spillway::offload::detail {

/// Position of the next use of `unit` in `uses` at or after `from`; uses.size() if there is none.
[[nodiscard]] std::size_t next_use(std::span<const std::size_t> uses, std::size_t from,
                                   std::size_t unit) noexcept;

/// How often each unit is fetched in one pass of `uses` that starts with nothing usable (every
/// weight has a new version) when its class has `slots[class_of[unit]]` slots and the unit whose
/// next use is farthest gives way (Belady 1966). Result is indexed by unit.
[[nodiscard]] std::vector<std::size_t> count_fetches(std::span<const std::size_t> uses,
                                                     std::span<const std::size_t> class_of,
                                                     std::span<const std::size_t> slots);

}  // namespace spillway::offload::detail
