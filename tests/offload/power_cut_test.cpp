// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <cstring>
#include <random>

#include <catch2/catch.hpp>

#include "tests/offload/synthetic_training.h"
#include "tests/support/recording_backend.h"
#include "tests/support/temporary_folder.h"

using namespace spillway;
using namespace spillway::testing;

namespace {

constexpr std::uint64_t steps = 3;

SyntheticRun starved_run(const std::filesystem::path& out, cpu_optim::StateFormat state) {
    SyntheticRun run;
    run.out = out;
    run.steps = steps;
    run.placement.host_bytes = std::size_t{19} << 20;
    run.placement.device_bytes = std::size_t{4} << 20;
    run.placement.chunk_bytes = std::size_t{64} << 10;
    run.placement.commit_every = 1;
    run.state = state;
    return run;
}

/// Trains on a disk that dies at operation `crash_point`; what it leaves is written to the real
/// files.
void train_until_power_cut(SyntheticRun run, std::size_t crash_point, std::uint64_t seed) {
    const auto disk = std::make_shared<RecordedDisk>();
    disk->fail_from(crash_point);
    run.placement.backend_factory = [&](std::size_t depth) {
        return std::make_unique<RecordingBackend>(disk, depth);
    };
    CHECK_THROWS(run_synthetic(run));
    disk->materialise(crash_point, seeded_fates(seed));
}

/// Points all over a run, and those before and after every flush: the edges of its commits.
std::vector<std::size_t> interesting_points(cpu_optim::StateFormat state) {
    const TemporaryFolder folder;
    const auto disk = std::make_shared<RecordedDisk>();
    auto run = starved_run(folder.path() / "out", state);
    run.placement.backend_factory = [&](std::size_t depth) {
        return std::make_unique<RecordingBackend>(disk, depth);
    };
    (void)run_synthetic(run);
    std::vector<std::size_t> points;
    std::size_t last_flush = 0;
    for (const auto& operation : disk->log()) {
        if (operation.operation != nvme::IoOperation::flush)
            continue;
        last_flush = operation.index;
        if (points.empty() || points.back() != last_flush)
            points.push_back(last_flush);
        points.push_back(last_flush + 1);
    }
    std::mt19937_64 random(20231);
    for (int i = 0; i < 8; ++i)
        points.push_back(random() % last_flush);
    return points;
}

}  // namespace

TEST_CASE("a power cut anywhere in a run leaves a commit that goes on to the same bits") {
    const auto state = GENERATE(cpu_optim::StateFormat::fp32, cpu_optim::StateFormat::int8);
    const auto expected = reference_synthetic(steps, 0.05, {}, synthetic_adamw(), state);
    const auto crash_points = interesting_points(state);
    REQUIRE(crash_points.size() > 20);
    // The order of flushes is the same in every format: a part of the points for those beyond one.
    const std::size_t stride = state == cpu_optim::StateFormat::fp32 ? 1 : 4;
    for (std::size_t i = 0; i < crash_points.size(); i += stride) {
        const auto crash_point = crash_points[i];
        CAPTURE(state_format_name(state), crash_point);
        const TemporaryFolder folder;
        const auto run = starved_run(folder.path() / "out", state);
        train_until_power_cut(run, crash_point, crash_point);
        const auto outcome = run_synthetic(run);
        CHECK(outcome.masters.size() == expected.size());
        CHECK(std::memcmp(outcome.masters.data(), expected.data(),
                          expected.size() * sizeof(float)) == 0);
    }
}
