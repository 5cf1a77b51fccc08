// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/train/time_budget.h"

#include <limits>
#include <thread>

#include <catch2/catch.hpp>

using spillway::engine::RunTime;
using spillway::engine::TimeBudget;

TEST_CASE("run time goes on from what earlier sessions took") {
    const RunTime time(100);
    const double first = time.elapsed_s();
    CHECK(first >= 100);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    CHECK(time.elapsed_s() >= first + 0.005);
}

TEST_CASE("progress is elapsed by budget, stays in range and never falls") {
    TimeBudget budget(200, 50);
    CHECK(budget.progress(50) == 0.25);
    CHECK(budget.progress(100) == 0.5);
    CHECK(budget.progress(90) == 0.5);
    CHECK(budget.progress(250) == 1);
    CHECK(budget.progress(199) == 1);
}

TEST_CASE("equal steps fill the budget and end at progress 1") {
    TimeBudget budget(10, 0);
    double now = 0;
    int steps = 0;
    while (budget.step_fits(now)) {
        now += 0.25;
        ++steps;
        budget.step_ended(now);
    }
    CHECK(steps == 40);
    CHECK(budget.progress(now) == 1);
}

TEST_CASE("a step that would end past the budget is not begun") {
    TimeBudget budget(10, 0);
    double now = 0;
    while (budget.step_fits(now))
        budget.step_ended(now += 3);
    CHECK(now == 9);
}

TEST_CASE("the step's length follows the recent steps") {
    TimeBudget budget(1000, 0);
    double now = 0;
    for (int i = 0; i < 10; ++i)
        budget.step_ended(now += 1);
    CHECK(budget.step_s() == Approx(1));
    for (int i = 0; i < 40; ++i)
        budget.step_ended(now += 2);
    CHECK(budget.step_s() == Approx(2).epsilon(0.01));
    CHECK(budget.step_fits(997));
    CHECK_FALSE(budget.step_fits(999));
}

TEST_CASE("a resumed session begins where the clock stands, and an old budget is over") {
    TimeBudget resumed(100, 95);
    CHECK(resumed.step_s() == 0);
    CHECK(resumed.step_fits(95));
    resumed.step_ended(98);
    CHECK(resumed.step_s() == Approx(3));
    CHECK_FALSE(resumed.step_fits(98));
    CHECK_FALSE(TimeBudget(100, 100).step_fits(100));
    CHECK_FALSE(TimeBudget(100, 250).step_fits(250));
}

TEST_CASE("budgets that cannot be are refused") {
    const double inf = std::numeric_limits<double>::infinity();
    const auto budget_s = GENERATE_COPY(0.0, -1.0, inf, std::numeric_limits<double>::quiet_NaN());
    CHECK_THROWS_WITH(TimeBudget(budget_s, 0), Catch::Contains("time budget"));
    CHECK_THROWS_WITH(TimeBudget(1, -1), Catch::Contains("elapsed time"));
}
