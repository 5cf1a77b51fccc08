// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "offload/plan.h"

namespace spillway::offload::detail {

/// The order in which gradients complete: by the last unit that brings a part of the chunk; chunks
/// of one unit from the last to the first, as they are taken in.
[[nodiscard]] std::vector<std::uint64_t> completion_order(
    const ElementOrder& order, const std::vector<Unit>& units, const OffloadPlan& plan,
    const std::vector<std::size_t>& gradient_uses);

/// All chunks in the order of their elements.
[[nodiscard]] std::vector<std::uint64_t> forward_order(const OffloadPlan& plan);

}  // namespace spillway::offload::detail
