// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/sim_link.h"

#include <catch2/catch.hpp>

using spillway::cuda::SimLink;
using namespace std::chrono_literals;

namespace {

const SimLink::Clock::time_point start{1000s};

}  // namespace

TEST_CASE("a transfer takes its bytes by the rate and waits for those before") {
    SimLink link(1e9);
    CHECK(link.transfer(1000, start) == start + 1us);
    CHECK(link.transfer(3000, start) == start + 4us);
    CHECK(link.transfer(1000, start + 2us) == start + 5us);
    CHECK(link.transfer(0, start) == start + 5us);
}

TEST_CASE("an idle link starts a transfer when it is ready, not earlier") {
    SimLink link(1e9);
    CHECK(link.transfer(1000, start) == start + 1us);
    CHECK(link.transfer(1000, start + 1ms) == start + 1001us);
}

TEST_CASE("many small transfers add up exactly to the rate") {
    SimLink link(7e9);
    SimLink::Clock::time_point end;
    for (int i = 0; i < 1'000'000; ++i)
        end = link.transfer(7, start);
    CHECK(end == start + 1ms);
}

TEST_CASE("a link without a rate takes no time") {
    SimLink link(0);
    CHECK(link.transfer(1'000'000'000, start) == start);
}

TEST_CASE("waiting never ends early") {
    const auto wait = GENERATE(0us, 5us, 15us, 200us, 3000us);
    const auto until = SimLink::Clock::now() + wait;
    spillway::cuda::wait_precisely(until);
    CHECK(SimLink::Clock::now() >= until);
}
