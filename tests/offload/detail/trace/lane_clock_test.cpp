// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/trace/lane_clock.h"

#include <numeric>
#include <random>
#include <set>

#include <catch2/catch.hpp>

using spillway::offload::TraceCause;
using spillway::offload::detail::LaneClock;

namespace {

std::uint64_t idle(const LaneClock& clock, std::size_t lane, TraceCause cause) {
    return clock.times(lane).idle_ns[static_cast<std::size_t>(cause)];
}

std::uint64_t sum(const LaneClock& clock, std::size_t lane) {
    const auto& times = clock.times(lane);
    return std::accumulate(times.idle_ns.begin(), times.idle_ns.end(), times.busy_ns);
}

}  // namespace

TEST_CASE("lane clock: a lane that works on several things is busy once") {
    LaneClock clock;
    const auto reads = clock.add({"reads", TraceCause::nvme_read, {}});
    clock.start(100);
    clock.work_begins(reads, 110);
    clock.work_begins(reads, 120);
    clock.work_ends(reads, 130);
    clock.work_ends(reads, 150);
    clock.stop(160);
    CHECK(clock.times(reads).busy_ns == 40);
    CHECK(idle(clock, reads, TraceCause::other) == 20);
    CHECK(clock.wall_ns() == 60);
}

TEST_CASE("lane clock: what is under way at the start and at the stop counts in between") {
    LaneClock clock;
    const auto update = clock.add({"update", TraceCause::cpu, {}});
    clock.work_begins(update, 10);
    clock.start(100);
    clock.work_ends(update, 130);
    clock.work_begins(update, 150);
    clock.stop(200);
    clock.work_ends(update, 300);
    CHECK(clock.times(update).busy_ns == 80);
    CHECK(idle(clock, update, TraceCause::other) == 20);
}

TEST_CASE("lane clock: idle without a wait is of the first of the lane's causes under way") {
    LaneClock clock;
    const auto reads =
        clock.add({"reads", TraceCause::nvme_read, {TraceCause::cpu, TraceCause::compute}});
    const auto update = clock.add({"update", TraceCause::cpu, {TraceCause::compute}});
    const auto compute = clock.add({"compute", TraceCause::compute, {TraceCause::cpu}});
    clock.start(0);
    clock.work_begins(compute, 0);
    clock.work_begins(update, 10);
    clock.work_ends(update, 30);
    clock.work_ends(compute, 40);
    clock.stop(50);
    CHECK(idle(clock, reads, TraceCause::compute) == 20);
    CHECK(idle(clock, reads, TraceCause::cpu) == 20);
    CHECK(idle(clock, reads, TraceCause::other) == 10);
    CHECK(idle(clock, update, TraceCause::compute) == 20);
    CHECK(clock.times(compute).busy_ns == 40);
}

TEST_CASE("lane clock: a wait names its cause at its end, and counts where the lane is idle") {
    LaneClock clock;
    const auto compute = clock.add({"compute", TraceCause::compute, {TraceCause::cpu}});
    const auto update = clock.add({"update", TraceCause::cpu, {}});
    clock.start(0);
    clock.work_begins(update, 0);
    clock.work_begins(compute, 0);
    clock.wait_begins(compute, 1, 10);
    clock.work_ends(compute, 30);
    clock.wait_ends(compute, 1, TraceCause::nvme_read, 70);
    clock.wait_begins(compute, 1, 80);
    clock.stop(100);
    CHECK(clock.times(compute).busy_ns == 30);
    CHECK(idle(clock, compute, TraceCause::nvme_read) == 40);
    CHECK(idle(clock, compute, TraceCause::cpu) == 10);
    CHECK(idle(clock, compute, TraceCause::other) == 20);  // nobody came to say
}

TEST_CASE("lane clock: of two waits at once, idle time is of the one that began first") {
    LaneClock clock;
    const auto compute = clock.add({"compute", TraceCause::compute, {}});
    clock.start(0);
    clock.wait_begins(compute, 1, 0);
    clock.wait_begins(compute, 2, 50);
    clock.wait_ends(compute, 2, TraceCause::cpu, 60);
    clock.wait_begins(compute, 2, 70);
    clock.wait_ends(compute, 1, TraceCause::nvme_read, 80);
    clock.wait_ends(compute, 2, TraceCause::commit, 95);
    clock.stop(95);
    CHECK(idle(clock, compute, TraceCause::cpu) == 0);
    CHECK(idle(clock, compute, TraceCause::nvme_read) == 80);
    CHECK(idle(clock, compute, TraceCause::commit) == 15);
}

TEST_CASE("lane clock: busy and idle add up whatever happens") {
    constexpr std::size_t lanes = 5;
    std::mt19937_64 random(7);
    LaneClock clock;
    for (std::size_t lane = 0; lane < lanes; ++lane)
        static_cast<void>(clock.add({"lane",
                                     static_cast<TraceCause>(lane),
                                     {static_cast<TraceCause>((lane + 1) % lanes),
                                      static_cast<TraceCause>((lane + 2) % lanes)}}));
    std::multiset<std::size_t> working;
    std::multiset<std::size_t> waiting;
    std::uint64_t now = 1000;
    clock.start(now);
    for (int event = 0; event < 2000; ++event) {
        now += random() % 50;
        const std::size_t lane = random() % lanes;
        auto& open = random() % 2 == 0 ? working : waiting;
        const bool ends = open.contains(lane) && random() % 2 == 0;
        if (ends)
            open.erase(open.find(lane));
        else
            open.insert(lane);
        if (&open == &working)
            ends ? clock.work_ends(lane, now) : clock.work_begins(lane, now);
        else if (ends)
            clock.wait_ends(lane, lane, static_cast<TraceCause>(random() % lanes), now);
        else
            clock.wait_begins(lane, lane, now);
    }
    clock.stop(now + 10);
    for (std::size_t lane = 0; lane < lanes; ++lane)
        CHECK(sum(clock, lane) == clock.wall_ns());
}
