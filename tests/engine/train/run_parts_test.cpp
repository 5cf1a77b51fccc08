// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <span>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <signal.h>

#include "engine/train/master_hash.h"
#include "engine/train/progress_meter.h"
#include "engine/train/stop_request.h"
#include "engine/train/train_result.h"

using namespace spillway::engine;
using Catch::Matchers::Contains;

TEST_CASE("run_parts: a stop request outlives any number of signals and starts afresh") {
    {
        const StopRequest stop;
        CHECK_FALSE(stop.requested());
        ::raise(SIGTERM);
        CHECK(stop.requested());
        ::raise(SIGINT);
        ::raise(SIGTERM);
        CHECK(stop.requested());
        CHECK_THROWS_AS(StopRequest(), std::logic_error);
    }
    const StopRequest next;
    CHECK_FALSE(next.requested());
}

TEST_CASE("run_parts: a signal that another thread takes is seen too") {
    const StopRequest stop;
    std::thread([] { ::raise(SIGINT); }).join();
    CHECK(stop.requested());
}

TEST_CASE("run_parts: the former handling of signals comes back") {
    struct sigaction before {};
    struct sigaction after {};
    ::sigaction(SIGTERM, nullptr, &before);
    { const StopRequest stop; }
    ::sigaction(SIGTERM, nullptr, &after);
    CHECK(after.sa_handler == before.sa_handler);
}

TEST_CASE("run_parts: the hash of masters does not depend on the pieces, but on every bit") {
    std::vector<float> values(1000);
    for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(i) * 0.25F;
    const std::span<const float> all(values);
    MasterHash whole;
    whole.add(all);
    MasterHash pieces;
    for (std::size_t i = 0; i < values.size(); i += 8)
        pieces.add(all.subspan(i, 8));
    CHECK(whole.digest() == pieces.digest());
    values[500] = -values[500];
    MasterHash other;
    other.add(all);
    CHECK(other.digest() != whole.digest());
    // XXH3-64 of no bytes, as its specification has it.
    CHECK(MasterHash().digest() == 0x2D06800538D394C2ULL);
}

TEST_CASE("run_parts: a commit's client state reads back as it was") {
    const RunProgress progress{.iteration = 7,
                               .tokens = std::uint64_t{1} << 60,
                               .skipped_steps = 2,
                               .consecutive_skips = 1,
                               .elapsed_s = 0.1,
                               .first_loss = 5.5,
                               .last_loss = {}};
    const auto back = parse_client_state(to_client_state(progress));
    CHECK(back.iteration == 7);
    CHECK(back.tokens == std::uint64_t{1} << 60);
    CHECK(back.skipped_steps == 2);
    CHECK(back.consecutive_skips == 1);
    CHECK(back.elapsed_s == 0.1);
    CHECK(back.first_loss == 5.5);
    CHECK_FALSE(back.last_loss.has_value());
    CHECK_THROWS_AS(parse_client_state("{}"), std::runtime_error);
    CHECK_THROWS_AS(parse_client_state("not"), std::runtime_error);
}

TEST_CASE(
    "run_parts: a plain stream gets a line now and then, with rates and what bounds the step") {
    std::ostringstream human;
    std::ostringstream results;
    Console console(human, results, HumanStream::plain);
    ProgressMeter meter(console, StepBound{.seconds = 0.5, .by = "nvme"});
    StepReport step{
        .iteration = 1, .steps = 10, .loss = 3.25, .step_s = 1, .tokens = 200, .left_s = 75};
    step.offload.nvme_read_bytes = 2'000'000'000;
    meter.report(step);
    meter.report(step);
    CHECK(human.str() ==
          "step 1/10  loss 3.2500  200 tok/s  50% of nvme  rd 2.00 GB/s  1m15s left\n");
}

TEST_CASE("run_parts: a line tells what the commits since the last one cost") {
    std::ostringstream human;
    std::ostringstream results;
    Console console(human, results, HumanStream::terminal);
    ProgressMeter meter(console, std::nullopt);
    StepReport step{.iteration = 1, .loss = 3.25, .step_s = 1, .tokens = 200};
    step.offload.commits = 1;  // the one that a new run begins with
    meter.report(step);
    CHECK(human.str().find("commit") == std::string::npos);
    std::this_thread::sleep_for(std::chrono::milliseconds(250));
    step.iteration = 2;
    step.offload.commits = 2;
    step.offload.commit_bytes = 500'000'000;
    step.offload.commit_wall_s = 0.75;
    step.offload.stall.commit = 0.25;
    meter.report(step);
    CHECK_THAT(human.str(), Contains("commit 0.50 GB 0.75 s (0.25 s waited)"));
}

TEST_CASE("run_parts: times are short for people") {
    CHECK(human_time(0.2) == "0s");
    CHECK(human_time(59.6) == "1m00s");
    CHECK(human_time(3723) == "1h02m");
}
