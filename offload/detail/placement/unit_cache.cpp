// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/placement/unit_cache.h"

#include <algorithm>

namespace spillway::offload::detail {

std::size_t next_use(std::span<const std::size_t> uses, std::size_t from,
                     std::size_t unit) noexcept {
    const auto begin = uses.begin() + static_cast<std::ptrdiff_t>(std::min(from, uses.size()));
    return static_cast<std::size_t>(std::find(begin, uses.end(), unit) - uses.begin());
}

std::vector<std::size_t> count_fetches(std::span<const std::size_t> uses,
                                       std::span<const std::size_t> class_of,
                                       std::span<const std::size_t> slots) {
    std::vector<std::size_t> fetches(class_of.size(), 0);
    std::vector<std::vector<std::size_t>> cached(slots.size());
    for (std::size_t position = 0; position < uses.size(); ++position) {
        const auto unit = uses[position];
        auto& members = cached[class_of[unit]];
        if (std::find(members.begin(), members.end(), unit) != members.end())
            continue;
        ++fetches[unit];
        if (members.size() == slots[class_of[unit]]) {
            const auto sooner = [&](std::size_t a, std::size_t b) {
                return next_use(uses, position, a) < next_use(uses, position, b);
            };
            members.erase(std::max_element(members.begin(), members.end(), sooner));
        }
        members.push_back(unit);
    }
    return fetches;
}

}  // namespace spillway::offload::detail
