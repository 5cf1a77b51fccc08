// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/drives/drive_lanes.h"

#include <algorithm>

namespace spillway::offload::detail {

DriveLanes::DriveLanes(std::size_t drives, std::size_t slots)
    : lanes_(std::max<std::size_t>(drives, 1)), slots_(slots) {}

void DriveLanes::begin(std::span<const std::size_t> drives) {
    for (auto& lane : lanes_)
        lane = {};
    free_slots_ = slots_;
    for (std::size_t item = 0; item < drives.size(); ++item)
        lanes_[drives[item]].items.push_back(item);
}

std::optional<DriveLanes::Turn> DriveLanes::take() {
    const auto waiting =
        std::ranges::count_if(lanes_, [](const Lane& lane) { return !lane.items.empty(); });
    const auto most = waiting > 1 ? std::max<std::size_t>(slots_ / lanes_.size(), 1) : slots_;
    Lane* chosen = nullptr;
    for (auto& lane : lanes_) {
        if (lane.items.empty() || lane.taken >= most)
            continue;
        const bool better =
            chosen == nullptr || lane.taken < chosen->taken ||
            (lane.taken == chosen->taken && lane.items.front() < chosen->items.front());
        if (better)
            chosen = &lane;
    }
    if (chosen == nullptr || free_slots_ == 0)
        return std::nullopt;
    --free_slots_;
    const Turn turn{chosen->items.front(), static_cast<std::size_t>(chosen - lanes_.data())};
    chosen->items.pop_front();
    ++chosen->taken;
    return turn;
}

}  // namespace spillway::offload::detail
