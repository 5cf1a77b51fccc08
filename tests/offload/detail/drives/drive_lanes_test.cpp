// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/drives/drive_lanes.h"

#include <algorithm>
#include <deque>
#include <map>
#include <vector>

#include <catch2/catch.hpp>

using spillway::offload::detail::DriveLanes;

namespace {

std::vector<std::size_t> take_all(DriveLanes& lanes) {
    std::vector<std::size_t> taken;
    while (const auto turn = lanes.take())
        taken.push_back(turn->item);
    return taken;
}

}  // namespace

TEST_CASE("drive lanes: one drive's items come in order") {
    DriveLanes lanes(1, 4);
    lanes.begin(std::vector<std::size_t>(6, 0));
    CHECK(take_all(lanes) == std::vector<std::size_t>{0, 1, 2, 3});
    lanes.give_back(0);
    CHECK(take_all(lanes) == std::vector<std::size_t>{4});
    lanes.give_back(0);
    lanes.give_back(0);
    CHECK(take_all(lanes) == std::vector<std::size_t>{5});
}

TEST_CASE("drive lanes: each drive has its part of the slots, whatever lies first") {
    DriveLanes lanes(2, 6);
    lanes.begin(std::vector<std::size_t>{0, 0, 0, 0, 0, 1, 0, 1, 1, 1});
    CHECK(take_all(lanes) == std::vector<std::size_t>{0, 5, 1, 7, 2, 8});
    // A slot of the second drive goes to the second drive, though the first has items before.
    lanes.give_back(1);
    CHECK(take_all(lanes) == std::vector<std::size_t>{9});
    // It has no more, so its slots are free for the first.
    lanes.give_back(1);
    lanes.give_back(1);
    CHECK(take_all(lanes) == std::vector<std::size_t>{3, 4});
}

TEST_CASE("drive lanes: every item once, and no slot too many, for any mix") {
    const auto drives = GENERATE(std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{5});
    const auto per_drive = GENERATE(std::size_t{1}, std::size_t{4});
    DriveLanes lanes(drives, drives * per_drive);
    std::vector<std::size_t> places(97);
    for (std::size_t item = 0; item < places.size(); ++item)
        places[item] = item * item % 11 % drives;
    for (int pass = 0; pass < 2; ++pass) {
        lanes.begin(places);
        std::vector<int> times(places.size(), 0);
        std::deque<std::size_t> in_use;
        std::map<std::size_t, std::size_t> last_of_drive;
        for (std::size_t done = 0; done < places.size(); ++done) {
            while (const auto turn = lanes.take()) {
                const auto [item, drive] = *turn;
                CHECK(drive == places[item]);
                ++times[item];
                const auto [before, is_first] = last_of_drive.try_emplace(drive, item);
                CHECK((is_first || before->second < item));
                before->second = item;
                in_use.push_back(item);
            }
            REQUIRE(!in_use.empty());
            REQUIRE(in_use.size() <= drives * per_drive);
            lanes.give_back(places[in_use.front()]);
            in_use.pop_front();
        }
        CHECK(std::ranges::all_of(times, [](int count) { return count == 1; }));
    }
}

TEST_CASE("drive lanes: a pass without items gives none") {
    DriveLanes lanes(2, 8);
    lanes.begin({});
    CHECK(!lanes.take());
}
