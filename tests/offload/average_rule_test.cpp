// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/average_rule.h"

#include <stdexcept>

#include <catch2/catch.hpp>

using namespace spillway;
using namespace spillway::offload;

TEST_CASE("average_rule: what is averaged, and when") {
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
