// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/settings/average_choice.h"

#include <catch2/catch.hpp>

#include "engine/settings/optimizer_choice.h"

using namespace spillway;
using namespace spillway::engine;
using Catch::Matchers::Contains;

TEST_CASE("average_choice: it is a plane more, exact, and refused where it would stay empty") {
    TrainSettings s;
    s.model = "gpt2:2x64x2";
    s.data = {"a.txt"};
    s.out = "out";
    s.steps = 10;
    const auto rest = rest_bytes_per_parameter(s);
    s.average = "swa:10";
    CHECK(rest_bytes_per_parameter(s) == rest + 4);
    CHECK(planes_of(s).contains(offload::Plane::average));
    CHECK(is_exact(s));
    CHECK(problems_of(s).empty());
    s.average = "swa:11";
    const auto problems = problems_of(s);
    REQUIRE(problems.size() == 1);
    CHECK_THAT(problems.front(), Contains("--average swa:11: --steps 10 ends the run"));
}

TEST_CASE("average_choice: why there is none to read") {
    TrainSettings s;
    CHECK_THAT(average_problem(s, 100), Contains("keeps no average"));
    s.average = "swa:50";
    CHECK_THAT(average_problem(s, 49), Contains("after update 50; its last commit holds 49"));
    CHECK(average_problem(s, 50).empty());
}
