// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/plan/prediction.h"

#include <catch2/catch.hpp>

using namespace spillway::engine;
using spillway::offload::UpdateTiming;

namespace {

/// A drive of 100 bytes a second each way, 150 both ways; passes of 3 s and 6 s.
StepCosts costs_of_a_step() {
    StepCosts costs;
    costs.rates = {.nvme_read = 100, .nvme_write = 100, .nvme_mixed = 150};
    costs.pass = {.forward_s = 3, .backward_s = 6};
    costs.update_s = 1;
    return costs;
}

}  // namespace

TEST_CASE("prediction: a step of resident state is its work") {
    for (const auto timing : {UpdateTiming::after_norm, UpdateTiming::as_completed}) {
        const auto prediction = predict_step(costs_of_a_step(), timing);
        CHECK(prediction.seconds == Approx(10));
        CHECK(prediction.bound.seconds == Approx(10));
        CHECK(prediction.bound.by == "cpu");
    }
    CHECK(hiding_tokens(costs_of_a_step(), 512) == 0);
}

TEST_CASE("prediction: the update's traffic hides behind the pass that it overlaps") {
    auto costs = costs_of_a_step();
    costs.update_read_bytes = 300;
    costs.update_written_bytes = 300;  // 4 s of the drive, both at once
    SECTION("the next forward, when gradients wait for their norm") {
        CHECK(predict_step(costs, UpdateTiming::after_norm).seconds == Approx(10));
        costs.update_read_bytes = costs.update_written_bytes = 600;  // 8 s beside 4 s of work
        CHECK(predict_step(costs, UpdateTiming::after_norm).forward_s == Approx(8));
        CHECK(predict_step(costs, UpdateTiming::after_norm).seconds == Approx(14));
    }
    SECTION("backward, when nothing waits") {
        costs.update_read_bytes = costs.update_written_bytes = 600;  // 8 s beside 7 s of work
        CHECK(predict_step(costs, UpdateTiming::as_completed).backward_s == Approx(8));
        CHECK(predict_step(costs, UpdateTiming::as_completed).seconds == Approx(11));
    }
    SECTION("no order of the work could beat the busiest resource") {
        costs.update_read_bytes = costs.update_written_bytes = 1500;  // 20 s
        const auto prediction = predict_step(costs, UpdateTiming::after_norm);
        CHECK(prediction.bound.by == "nvme");
        CHECK(prediction.bound.seconds == Approx(20));
        CHECK(prediction.seconds == Approx(26));
    }
}

TEST_CASE("prediction: layers' inputs are written in forward and read in backward") {
    auto costs = costs_of_a_step();
    costs.input_bytes = 800;  // 8 s of the drive each way
    const auto prediction = predict_step(costs, UpdateTiming::after_norm);
    CHECK(prediction.forward_s == Approx(8));
    CHECK(prediction.backward_s == Approx(8));
    CHECK(prediction.bound.seconds == Approx(1600.0 / 150));
    SECTION("over the link too, down and up") {
        costs.rates.to_host = 50;
        costs.rates.to_device = 100;
        costs.input_link_bytes = costs.to_device_bytes = costs.to_host_bytes = 800;
        CHECK(predict_step(costs, UpdateTiming::after_norm).forward_s == Approx(16));
        CHECK(predict_step(costs, UpdateTiming::after_norm).backward_s == Approx(8));
    }
    SECTION("and take of what hides the rest") {
        costs.input_bytes = 300;                                     // 4 s, of a pass of 9
        costs.update_read_bytes = costs.update_written_bytes = 300;  // 4 s more
        CHECK(hiding_tokens(costs, 100) == 80);
        costs.input_bytes = 900;  // 12 s: no batch is large enough
        CHECK(hiding_tokens(costs, 100) == 0);
    }
}

TEST_CASE("prediction: weights are read for both passes, waiting gradients written in backward") {
    auto costs = costs_of_a_step();
    costs.weight_read_bytes = 2000;  // 10 s a pass
    CHECK(predict_step(costs, UpdateTiming::after_norm).seconds == Approx(20));
    costs.gradient_bytes = 2000;  // read with the update, 20 s beside them; written in backward
    const auto prediction = predict_step(costs, UpdateTiming::after_norm);
    CHECK(prediction.forward_s == Approx(30));
    CHECK(prediction.backward_s == Approx(20));
    CHECK(costs.demand().nvme_read_bytes == 4000);
    CHECK(costs.demand().nvme_written_bytes == 2000);
}

TEST_CASE(
    "prediction: what of commits the backward pass does not hide takes its share of every step") {
    auto costs = costs_of_a_step();
    costs.commit_bytes = 1100;  // 11 s, 6 of them beside the backward pass
    const auto commit = predict_step(costs, UpdateTiming::after_norm).commit;
    CHECK(commit.seconds == Approx(11));
    CHECK(commit.hidden_s == Approx(6));
    CHECK(commit.exposed_s == Approx(5));
    CHECK(predict_step(costs, UpdateTiming::as_completed).commit.exposed_s == Approx(11));
    SECTION("by steps") {
        costs.commit_interval.steps = 10;
        CHECK(predict_step(costs, UpdateTiming::after_norm).seconds == Approx(10.5));
    }
    SECTION("by time") {
        costs.commit_interval.seconds = 100;  // after every ten steps
        CHECK(predict_step(costs, UpdateTiming::after_norm).commit_s == Approx(0.5));
    }
    SECTION("never") {
        costs.commit_bytes = 0;
        costs.commit_interval.steps = 1;
        CHECK(predict_step(costs, UpdateTiming::after_norm).seconds == Approx(10));
    }
}

TEST_CASE("prediction: work on what moves is the processor's too, where it belongs") {
    auto costs = costs_of_a_step();
    costs.weights_s = 2;
    costs.gradients_s = 0.5;
    costs.checksums_s = 0.25;
    const auto prediction = predict_step(costs, UpdateTiming::after_norm);
    CHECK(prediction.forward_s == Approx(3 + 1 + 1 + 0.25));
    CHECK(prediction.backward_s == Approx(6 + 1 + 0.5));
    CHECK(prediction.bound.seconds == Approx(10));  // it could be done without
    CHECK(predict_step(costs, UpdateTiming::as_completed).seconds == Approx(12.75));
}

TEST_CASE("prediction: work and passes of one processor get in each other's way") {
    auto costs = costs_of_a_step();
    costs.sharing = 1.5;
    CHECK(predict_step(costs, UpdateTiming::after_norm).forward_s == Approx(3 + 1 + 0.5));
    CHECK(predict_step(costs, UpdateTiming::after_norm).backward_s == Approx(6));
    costs.update_s = 4;  // a second of it when the pass is over
    CHECK(predict_step(costs, UpdateTiming::after_norm).forward_s == Approx(3 + 4 + 1.5));
    costs.passes_by = PassesBy::gpu;
    CHECK(predict_step(costs, UpdateTiming::after_norm).forward_s == Approx(4));
}

TEST_CASE("prediction: memory that everything passes through is a limit of its own") {
    auto costs = costs_of_a_step();
    costs.rates.dram = 10;
    costs.dram_bytes = 250;
    CHECK(predict_step(costs, UpdateTiming::after_norm).seconds == Approx(25));
}

TEST_CASE("prediction: as many tokens hide the drive as make the passes as long") {
    auto costs = costs_of_a_step();
    costs.update_read_bytes = costs.update_written_bytes = 1350;  // 18 s against 9 s
    CHECK(hiding_tokens(costs, 512) == 1024);
    costs.pass = {};
    CHECK(hiding_tokens(costs, 512) == 0);
}
