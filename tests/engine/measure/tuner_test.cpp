// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/measure/tuner.h"

#include <algorithm>
#include <filesystem>

#include <catch2/catch.hpp>

#include "cpu_optim/isa.h"
#include "engine/measure/tuning_bench.h"
#include "tests/support/temporary_folder.h"

using namespace spillway;
using namespace spillway::engine;
using testing::TemporaryFolder;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

TrainSettings settings_on(const std::filesystem::path& folder) {
    TrainSettings settings;
    settings.nvme = folder.string();
    settings.threads = 2;
    settings.isa = cpu_optim::isa_name(cpu_optim::best_isa());
    settings.profile = folder / "profile.json";
    return settings;
}

constexpr Tuning small_chunks{.chunk_bytes = std::uint64_t{64} << 10,
                              .update_window = 4,
                              .weight_window = 4,
                              .io_block_bytes = std::uint64_t{4} << 20,
                              .io_depth = 32,
                              .update_threads = 2};

}  // namespace

TEST_CASE("tuning bench: steps are made within its memory, for every optimizer and format") {
    const TemporaryFolder folder;
    ComputePool pool(2, cpu_optim::best_isa());
    for (const auto& [optimizer, state] :
         {std::pair{"adamw", "fp32"}, {"adamw", "int8"}, {"lion", "bf16"}, {"lamb", "fp32"}}) {
        CAPTURE(optimizer, state);
        auto settings = settings_on(folder.path());
        settings.optimizer = optimizer;
        settings.state = state;
        TuningBench bench({.settings = settings,
                           .drive_io = {{}},
                           .parameters = 3'000'000,
                           .memory_bytes = 64 * mib,
                           .passes = &pool,
                           .step_s = 0.001},
                          small_chunks);
        REQUIRE(bench.is_possible());
        CHECK(bench.elements() <= 3'000'000);
        auto wide = small_chunks;
        wide.chunk_bytes *= 2;
        wide.update_window = 3;
        for (const auto& tuning : {small_chunks, wide, small_chunks}) {
            CHECK(bench.step_s(tuning, TuningScene::update).value() > 0);
            CHECK(bench.step_s(tuning, TuningScene::beside_passes).value() > 0);
        }
        CHECK(bench.peak_bytes() <= 64 * mib);
        CHECK_FALSE(bench.step_s(small_chunks, TuningScene::weights).has_value());
        auto huge = small_chunks;
        huge.chunk_bytes = 64 * mib;
        CHECK_FALSE(bench.step_s(huge, TuningScene::update).has_value());
    }
    CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("tuning bench: without passes there is nothing beside an update") {
    const TemporaryFolder folder;
    const auto settings = settings_on(folder.path());
    TuningBench bench({.settings = settings,
                       .drive_io = {{}},
                       .parameters = 2'000'000,
                       .memory_bytes = 64 * mib,
                       .step_s = 0.001},
                      small_chunks);
    REQUIRE(bench.is_possible());
    CHECK_FALSE(bench.step_s(small_chunks, TuningScene::beside_passes).has_value());
}

TEST_CASE("tuning bench: passes that fetch weights stay within its memory and the device's") {
    const TemporaryFolder folder;
    const auto settings = settings_on(folder.path());
    for (const auto* const name : {"cpu", "sim:16MiB"}) {
        CAPTURE(name);
        const auto device = cuda::make_device(name, 16 * mib);
        const auto compute = device->create_stream("compute");
        TuningBench bench({.settings = settings,
                           .drive_io = {{}},
                           .parameters = 3'000'000,
                           .memory_bytes = 64 * mib,
                           .device = device.get(),
                           .compute = compute.get(),
                           .device_bytes = 16 * mib,
                           .step_s = 0.001},
                          small_chunks);
        REQUIRE(bench.is_possible());
        auto wide = small_chunks;
        wide.weight_window = 9;
        for (const auto& tuning : {small_chunks, wide, small_chunks})
            CHECK(bench.step_s(tuning, TuningScene::weights).value() > 0);
        CHECK(bench.step_s(small_chunks, TuningScene::update).value() > 0);
        CHECK(bench.peak_bytes() <= 64 * mib);
        auto huge = small_chunks;
        huge.chunk_bytes = 16 * mib;
        CHECK_FALSE(bench.step_s(huge, TuningScene::weights).has_value());
    }
    CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("tuning bench: too little memory, or too small a state, is no room for it") {
    const TemporaryFolder folder;
    const auto settings = settings_on(folder.path());
    for (const auto& [memory_bytes, parameters] :
         {std::pair{16 * mib, std::uint64_t{3'000'000}}, {64 * mib, std::uint64_t{20'000}}}) {
        CAPTURE(memory_bytes, parameters);
        const TuningBench bench({.settings = settings,
                                 .drive_io = {{}},
                                 .parameters = parameters,
                                 .memory_bytes = memory_bytes,
                                 .step_s = 0.001},
                                small_chunks);
        CHECK_FALSE(bench.is_possible());
    }
    CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("tuner: ladders hold the defaults, and leave out what a run does not have") {
    const TemporaryFolder folder;
    auto settings = settings_on(folder.path());
    settings.threads = 8;
    ComputePool pool(1, cpu_optim::Isa::scalar);
    TunerRequest request{
        .settings = settings, .defaults = small_chunks, .passes = &pool, .traffic_ratio = {}};
    request.defaults.update_threads = 8;
    const auto device = cuda::make_device("cpu", mib);
    request.device = device.get();
    const auto all = tuning_ladders(request);
    CHECK(all.size() == tuning_fields.size());
    for (const auto& ladder : all) {
        CHECK(std::ranges::is_sorted(ladder.rungs));
        CHECK(std::ranges::count(ladder.rungs, request.defaults.*ladder.field) == 1);
    }
    request.passes = nullptr;
    request.device = nullptr;
    request.drives = TunedDrives::left_alone;
    for (const auto& ladder : tuning_ladders(request))
        CHECK((ladder.field == &Tuning::chunk_bytes || ladder.field == &Tuning::update_window));
}

TEST_CASE("tuner: a short search leaves nothing behind and keeps to its rungs and its run") {
    const TemporaryFolder folder;
    const auto settings = settings_on(folder.path());
    ComputePool pool(2, cpu_optim::best_isa());
    bool asked = false;
    const auto outcome = tune({.settings = settings,
                               .defaults = small_chunks,
                               .drives = TunedDrives::left_alone,
                               .parameters = 2'000'000,
                               .memory_bytes = 48 * mib,
                               .passes = &pool,
                               .traffic_ratio =
                                   [&](const Tuning& tuning) {
                                       asked = true;
                                       // Larger chunks than this would not fit the run.
                                       return tuning.chunk_bytes > 4 * (64 << 10) ? 0.0 : 1.0;
                                   },
                               .limit_s = 0.5});
    REQUIRE(outcome.has_value());
    CHECK(asked == (outcome->compared > 0));  // a busy machine may leave no time for a pair
    CHECK(outcome->values.chunk_bytes <= 4 * (64 << 10));
    CHECK(outcome->values.io_depth == 0);
    CHECK(outcome->gain >= 1);
    CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("tuner: what moves more bytes than it could gain is not so much as timed") {
    const TemporaryFolder folder;
    const auto settings = settings_on(folder.path());
    const auto outcome = tune(
        {.settings = settings,
         .defaults = small_chunks,
         .parameters = 2'000'000,
         .memory_bytes = 48 * mib,
         .traffic_ratio = [](const Tuning& tuning) { return tuning == small_chunks ? 1 : 1.06; },
         .limit_s = 20});
    REQUIRE(outcome.has_value());
    CHECK(outcome->values == small_chunks);
    CHECK(outcome->whole);  // at once, whatever the time
}

TEST_CASE("tuner: what is as in the defaults is not set") {
    auto found = small_chunks;
    CHECK(differences(found, small_chunks) == Tuning{});
    found.io_depth = 8;
    CHECK(differences(found, small_chunks) == Tuning{.io_depth = 8});
    CHECK(combined({.io_depth = 8}, small_chunks) == found);
}
