// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/settings/average_choice.h"

#include <stdexcept>

#include <catch2/catch.hpp>

#include "engine/settings/optimizer_choice.h"

using namespace spillway;
using namespace spillway::engine;
using Catch::Matchers::Contains;

TEST_CASE("average_choice: what is averaged, and when") {
    CHECK_FALSE(parse_average("off"));
    const auto ema = parse_average("ema:0.99");
    REQUIRE(ema);
    CHECK(std::get<cpu_optim::EmaParameters>(ema->parameters).decay == 0.99);
    CHECK(ema->takes(1));
    CHECK_FALSE(ema->is_there(0));
    const auto swa = parse_average("swa:3");
    REQUIRE(swa);
    CHECK(std::holds_alternative<cpu_optim::SwaParameters>(swa->parameters));
    CHECK_FALSE(swa->takes(2));
    CHECK(swa->takes(6));
    CHECK_FALSE(swa->is_there(2));
    CHECK(swa->coefficients(3)->starts == cpu_optim::Term::on);
    CHECK(swa->coefficients(6)->share == 0.5f);
    CHECK_FALSE(swa->coefficients(7));
    for (const auto* wrong : {"", "ema", "ema:", "ema:1", "ema:0", "ema:nan", "ema:0.9x", "swa:0",
                              "swa:-1", "swa:1.5", "polyak:0.9"})
        CHECK_THROWS_AS(parse_average(wrong), std::invalid_argument);
}

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
