// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/detail/request_lanes.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace spillway::nvme::detail {

void RequestLanes::push(std::shared_ptr<RequestState>&& request) {
    std::size_t lane = write_lane;
    if (request->request.operation == IoOperation::read)
        lane = request->request.read_priority == ReadPriority::demand ? 0 : 1;
    lanes_[lane].waiting.push_back(std::move(request));
}

bool RequestLanes::can_start(std::size_t lane) const noexcept {
    const bool has_room = lane == write_lane ? writes_ < most_writes_ : reads_ < most_reads_;
    return has_room && !lanes_[lane].waiting.empty();
}

/// `lane_count` when none can start.
std::size_t RequestLanes::choose() const noexcept {
    for (std::size_t lane = lane_count; lane-- > 1;)
        if (can_start(lane) && lanes_[lane].overtaken >= most_overtakes)
            return lane;
    std::size_t lane = 0;
    while (lane < lane_count && !can_start(lane))
        ++lane;
    return lane;
}

std::shared_ptr<RequestState> RequestLanes::next() {
    drop_cut();
    const std::size_t chosen = choose();
    if (chosen == lane_count)
        return nullptr;
    for (std::size_t lane = chosen + 1; lane < lane_count; ++lane)
        if (can_start(lane))
            ++lanes_[lane].overtaken;
    lanes_[chosen].overtaken = 0;
    ++(chosen == write_lane ? writes_ : reads_);
    return lanes_[chosen].waiting.front();
}

void RequestLanes::operation_ended(IoOperation operation) noexcept {
    --(operation == IoOperation::read ? reads_ : writes_);
}

void RequestLanes::drop_cut() {
    for (Lane& lane : lanes_)
        while (!lane.waiting.empty() && lane.waiting.front()->is_cut())
            lane.waiting.pop_front();
}

bool RequestLanes::empty() const noexcept {
    return std::all_of(lanes_.begin(), lanes_.end(),
                       [](const Lane& lane) { return lane.waiting.empty(); });
}

std::vector<std::shared_ptr<RequestState>> RequestLanes::take_all() {
    std::vector<std::shared_ptr<RequestState>> all;
    for (Lane& lane : lanes_) {
        std::move(lane.waiting.begin(), lane.waiting.end(), std::back_inserter(all));
        lane.waiting.clear();
    }
    return all;
}

}  // namespace spillway::nvme::detail
