// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/placement/chunk_order.h"

#include <algorithm>

namespace spillway::offload::detail {

std::vector<std::uint64_t> completion_order(const ElementOrder& order,
                                            const std::vector<Unit>& units, const OffloadPlan& plan,
                                            const std::vector<std::size_t>& gradient_uses) {
    std::vector<std::size_t> last_use(plan.chunks, 0);
    for (std::size_t use = 0; use < gradient_uses.size(); ++use) {
        const auto range = unit_range(order, units[gradient_uses[use]]);
        const auto chunk_length = plan.chunk_tiles * tile_elements;
        for (auto chunk = range.begin / chunk_length; chunk * chunk_length < range.end; ++chunk)
            last_use[chunk] = use;
    }
    std::vector<std::uint64_t> chunks(plan.chunks);
    for (std::uint64_t i = 0; i < plan.chunks; ++i)
        chunks[i] = plan.chunks - 1 - i;
    std::stable_sort(chunks.begin(), chunks.end(),
                     [&](std::uint64_t a, std::uint64_t b) { return last_use[a] < last_use[b]; });
    return chunks;
}

std::vector<std::uint64_t> forward_order(const OffloadPlan& plan) {
    std::vector<std::uint64_t> chunks(plan.chunks);
    for (std::uint64_t i = 0; i < plan.chunks; ++i)
        chunks[i] = i;
    return chunks;
}

}  // namespace spillway::offload::detail
