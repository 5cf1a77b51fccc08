// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/train/run_clock.h"

#include <fstream>

#include <catch2/catch.hpp>

#include "tests/support/temporary_folder.h"

using namespace spillway::engine;

namespace {

TrainSettings by_steps(std::uint64_t steps, std::uint64_t schedule_steps) {
    TrainSettings settings;
    settings.lr = 1;
    settings.schedule = "linear";
    settings.steps = steps;
    settings.schedule_steps = schedule_steps;
    return settings;
}

}  // namespace

TEST_CASE("run_clock: steps end the run, updates drive the schedule") {
    RunClock clock(by_steps(10, 10), std::nullopt, 0);
    CHECK_FALSE(clock.is_over(9, 1e9));
    CHECK(clock.is_over(10, 0));
    CHECK(clock.pace(7, 5, 0).learning_rate == Approx(0.5));  // two steps were skipped
    CHECK_FALSE(clock.pace(7, 5, 0).progress.has_value());
    CHECK(clock.left_s(4, 0, 0.5) == Approx(3));
}

TEST_CASE("run_clock: more steps do not change the schedule that was") {
    RunClock first(by_steps(10, 10), std::nullopt, 0);
    RunClock longer(by_steps(20, 10), std::nullopt, 0);
    for (std::uint64_t update = 0; update < 10; ++update)
        CHECK(first.pace(update, update, 0).learning_rate ==
              longer.pace(update, update, 0).learning_rate);
    CHECK(longer.pace(15, 15, 0).learning_rate == 0);
    CHECK_FALSE(longer.is_over(10, 0));
}

TEST_CASE("run_clock: a budget follows the clock, over sessions") {
    auto settings = by_steps(0, 0);
    settings.budget_s = 100;
    RunClock clock(settings, std::nullopt, 20);
    const auto pace = clock.pace(3, 3, 25);
    CHECK(pace.progress == 0.25);
    CHECK(pace.learning_rate == Approx(0.75));
    CHECK(clock.left_s(3, 25, 1) == Approx(75));
    clock.step_ended(30);
    CHECK_FALSE(clock.is_over(4, 80));
    CHECK(clock.is_over(4, 95));  // a step of 10 s does not fit any more
}

TEST_CASE("run_clock: a replay repeats the logged progress and its length") {
    const spillway::testing::TemporaryFolder folder;
    const auto path = folder.path() / "metrics.jsonl";
    std::ofstream(path) << "{\"iteration\":1,\"progress\":0.0}\n"
                           "{\"iteration\":2,\"progress\":0.75}\n";
    RunClock clock(by_steps(0, 0), ProgressReplay(path), 0);
    CHECK(clock.pace(1, 1, 1e9).learning_rate == Approx(0.25));
    CHECK(clock.pace(1, 1, 1e9).progress == 0.75);
    CHECK_FALSE(clock.is_over(1, 1e9));
    CHECK(clock.is_over(2, 0));
}
