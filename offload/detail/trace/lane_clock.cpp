// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/trace/lane_clock.h"

#include <algorithm>
#include <utility>

namespace spillway::offload::detail {

std::size_t LaneClock::add(const TraceLane& lane) {
    Lane added;
    added.work = lane.work;
    added.waits_for = lane.waits_for;
    lanes_.push_back(std::move(added));
    return lanes_.size() - 1;
}

void LaneClock::start(std::uint64_t at_ns) {
    running_ = true;
    start_ns_ = now_ns_ = at_ns;
}

void LaneClock::stop(std::uint64_t at_ns) {
    advance(at_ns);
    running_ = false;
    for (auto& lane : lanes_) {
        for (auto& wait : lane.waits)
            lane.times.idle_ns[static_cast<std::size_t>(TraceCause::other)] +=
                std::exchange(wait.idle_ns, 0);
    }
}

void LaneClock::work_begins(std::size_t lane, std::uint64_t at_ns) {
    advance(at_ns);
    ++lanes_[lane].under_way;
    ++under_way_[static_cast<std::size_t>(lanes_[lane].work)];
}

void LaneClock::work_ends(std::size_t lane, std::uint64_t at_ns) {
    advance(at_ns);
    --lanes_[lane].under_way;
    --under_way_[static_cast<std::size_t>(lanes_[lane].work)];
}

void LaneClock::wait_begins(std::size_t lane, std::size_t wait, std::uint64_t at_ns) {
    advance(at_ns);
    lanes_[lane].waits.push_back({wait, 0});
}

void LaneClock::wait_ends(std::size_t lane, std::size_t wait, TraceCause cause,
                          std::uint64_t at_ns) {
    advance(at_ns);
    auto& waits = lanes_[lane].waits;
    const auto ended = std::ranges::find(waits, wait, &Wait::number);
    if (ended == waits.end())
        return;
    lanes_[lane].times.idle_ns[static_cast<std::size_t>(cause)] += ended->idle_ns;
    waits.erase(ended);
}

void LaneClock::advance(std::uint64_t at_ns) {
    if (!running_)
        return;
    const auto passed_ns = at_ns - now_ns_;
    now_ns_ = at_ns;
    for (auto& lane : lanes_) {
        if (lane.under_way > 0)
            lane.times.busy_ns += passed_ns;
        else if (!lane.waits.empty())
            lane.waits.front().idle_ns += passed_ns;
        else
            lane.times.idle_ns[static_cast<std::size_t>(cause_of(lane))] += passed_ns;
    }
}

TraceCause LaneClock::cause_of(const Lane& lane) const noexcept {
    const auto found = std::ranges::find_if(lane.waits_for, [this](TraceCause cause) {
        return under_way_[static_cast<std::size_t>(cause)] > 0;
    });
    return found == lane.waits_for.end() ? TraceCause::other : *found;
}

}  // namespace spillway::offload::detail
