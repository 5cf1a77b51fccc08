// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/plan/bound.h"

#include <stdexcept>

#include <catch2/catch.hpp>

#include "engine/measure/calibration.h"

using namespace spillway::engine;

TEST_CASE("bound: the slowest resource bounds a step") {
    const MachineRates rates{.nvme_read = 100,
                             .nvme_write = 50,
                             .nvme_mixed = 60,
                             .to_device = 1000,
                             .to_host = 500,
                             .dram = 10000};
    SECTION("reads and writes at once share the drive") {
        const auto bound =
            step_bound(lane_times(rates, {.nvme_read_bytes = 300, .nvme_written_bytes = 150}));
        CHECK(bound.by == "nvme");
        CHECK(bound.seconds == Approx(7.5));  // 450 / 60, above 300 / 100 and 150 / 50
    }
    SECTION("writes alone") {
        CHECK(step_bound(lane_times(rates, {.nvme_written_bytes = 150})).seconds == Approx(3));
    }
    SECTION("the link's two ways do not add up") {
        const auto bound =
            step_bound(lane_times(rates, {.to_device_bytes = 1000, .to_host_bytes = 1000}));
        CHECK(bound.by == "link");
        CHECK(bound.seconds == Approx(2));
    }
    SECTION("memory") {
        CHECK(step_bound(lane_times(rates, {.nvme_read_bytes = 100, .dram_bytes = 20000})).by ==
              "dram");
    }
    SECTION("the processor") {
        const auto bound = step_bound(lane_times(rates, {.nvme_read_bytes = 300, .cpu_s = 9}));
        CHECK(bound.by == "cpu");
        CHECK(bound.seconds == 9);
    }
}

TEST_CASE("bound: a rate that is not known bounds nothing") {
    const auto bound = step_bound(lane_times({}, {.nvme_read_bytes = 300, .dram_bytes = 1}));
    CHECK(bound.seconds == 0);
    CHECK(bound.by.empty());
}

TEST_CASE("bound: memory traffic is state, gradients and all that passes through") {
    CHECK(dram_bytes_per_step(10, 12, {}) == 400);
    CHECK(dram_bytes_per_step(10, 12,
                              {.nvme_read_bytes = 1,
                               .nvme_written_bytes = 2,
                               .to_device_bytes = 4,
                               .to_host_bytes = 8}) == 415);
}

TEST_CASE("bound: a pass is extrapolated over layers and sequences") {
    CHECK(extrapolate_pass(1.0, 1.0, 1, 1, 2, 2) == Approx(1.0));
    CHECK(extrapolate_pass(1.0, 1.5, 2, 12, 2, 2) == Approx(6.5));
    CHECK(extrapolate_pass(1.0, 2.5, 4, 12, 2, 8) == Approx(26.0));
    CHECK(extrapolate_pass(1.0, 0.9, 2, 12, 1, 1) == Approx(1.0));
    CHECK_THROWS_AS(extrapolate_pass(1, 1, 1, 0, 1, 1), std::invalid_argument);
}
