// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/plan/run_tuning.h"

#include <algorithm>
#include <string>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "engine/measure/profile.h"
#include "engine/plan/first_use.h"
#include "tests/support/temporary_folder.h"

using namespace spillway;
using namespace spillway::engine;
using Catch::Matchers::Contains;
using testing::TemporaryFolder;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;
constexpr std::size_t kib = std::size_t{1} << 10;

TrainSettings settings_on(const TemporaryFolder& folder) {
    TrainSettings settings;
    settings.model = "gpt2:4x192x4";
    settings.context = 96;
    settings.seq = 80;
    settings.batch = 4;
    settings.threads = 4;
    settings.isa = "scalar";
    settings.nvme = folder.path().string();
    settings.profile = folder.path() / "profile.json";
    return settings;
}

StoredTuning found_for(const TrainSettings& settings, std::size_t host_bytes, Tuning values) {
    return {.key = tuning_key(settings, "cpu", host_bytes),
            .measured_unix_s = 1,
            .values = values,
            .gain = values == Tuning{} ? 1 : 1.25};
}

MemoryBudgets budgets_of(std::size_t host_bytes) {
    return {.host_bytes = host_bytes, .device_bytes = host_bytes};
}

TuningSource source(const RunTuning& tuning, std::uint64_t Tuning::*member) {
    const auto field = std::ranges::find(tuning_fields, member, &TuningField::member);
    return tuning.sources.at(static_cast<std::size_t>(field - tuning_fields.begin()));
}

}  // namespace

TEST_CASE("run tuning: the defaults are those of the plan, the drives and the threads") {
    const TemporaryFolder folder;
    const auto settings = settings_on(folder);
    const auto tuned =
        plan_with_tuning(make_layout(settings), settings, budgets_of(38 * mib), std::nullopt);
    CHECK(tuned.settings.tuning == Tuning{});
    CHECK(tuned.tuning.used == Tuning{.chunk_bytes = tuned.plan.offload.chunk_tiles * 64 * kib,
                                      .update_window = 4,
                                      .weight_window = 4,
                                      .io_block_bytes = 4 * mib,
                                      .io_depth = 32,
                                      .update_threads = 4});
    CHECK_FALSE(tuned.tuning.searched);
    for (const auto one : tuned.tuning.sources)
        CHECK(one == TuningSource::default_value);
    const auto json = tuning_json(tuned.tuning);
    CHECK(json["update_window"]["value"] == 4);
    CHECK(json["update_window"]["from"] == "default");
}

TEST_CASE("run tuning: what the profile has for a run is used and told, flags stand") {
    const TemporaryFolder folder;
    auto settings = settings_on(folder);
    const auto budget = 38 * mib;
    const Tuning values{.chunk_bytes = 128 * kib, .update_window = 3, .io_depth = 16};
    store_tuning(settings.profile, found_for(settings, budget, values));
    const auto recalled = recall_tuning(settings, tuning_key(settings, "cpu", budget));
    REQUIRE(recalled.has_value());
    // Any budget of its class, and no other state format.
    CHECK(recall_tuning(settings, tuning_key(settings, "cpu", 40 * mib)).has_value());
    CHECK_FALSE(recall_tuning(settings, tuning_key(settings, "cpu", 20 * mib)).has_value());
    const auto layout = make_layout(settings);
    const auto tuned = plan_with_tuning(layout, settings, budgets_of(budget), recalled);
    CHECK(tuned.plan.offload.chunk_tiles == 2);
    CHECK(tuned.plan.offload.pipeline_slots == 3);
    CHECK(tuned.tuning.used.io_depth == 16);
    CHECK(tuned.tuning.gain == 1.25);
    CHECK(tuned.tuning.searched);
    CHECK(source(tuned.tuning, &Tuning::update_window) == TuningSource::profile);
    CHECK(source(tuned.tuning, &Tuning::weight_window) == TuningSource::default_value);
    CHECK_THAT(tuning_text(tuned.tuning), Contains("update window 3 (profile)"));

    auto flagged = settings;
    flagged.tuning.update_window = 5;
    const auto by_flag = plan_with_tuning(layout, flagged, budgets_of(budget), recalled);
    CHECK(by_flag.plan.offload.pipeline_slots == 5);
    CHECK(by_flag.plan.offload.chunk_tiles == 2);
    CHECK(source(by_flag.tuning, &Tuning::update_window) == TuningSource::flag);

    settings.tune = "off";
    CHECK_FALSE(recall_tuning(settings, recalled->key).has_value());
}

TEST_CASE("run tuning: what does not fit a run, or costs more than it gains, is left") {
    const TemporaryFolder folder;
    const auto settings = settings_on(folder);
    const auto layout = make_layout(settings);
    const auto moved = [](const TunedPlan& tuned) {
        return static_cast<double>(tuned.plan.offload.nvme_read_bytes_per_step +
                                   tuned.plan.offload.nvme_written_bytes_per_step);
    };
    // Each wider window takes memory from the state, then from what passes keep, until nothing but
    // windows would fit.
    std::size_t taken = 0;
    std::size_t costly = 0;
    for (const auto budget : {38 * mib, 44 * mib, 50 * mib}) {
        const auto usual = plan_with_tuning(layout, settings, budgets_of(budget), std::nullopt);
        const auto much = plan_with_tuning(
            layout, settings, budgets_of(budget),
            found_for(settings, budget, {.chunk_bytes = 16 * mib, .update_window = 16}));
        CHECK_THAT(much.tuning.note, Contains("does not fit"));
        CHECK(much.settings.tuning == Tuning{});
        for (std::uint64_t window = 5; window <= 64; ++window) {
            CAPTURE(budget, window);
            const auto tuned =
                plan_with_tuning(layout, settings, budgets_of(budget),
                                 found_for(settings, budget, {.update_window = window}));
            CHECK(tuned.plan.host_bytes(cuda::MemoryKind::host) <= budget);
            CHECK(moved(tuned) <= 1.05 * moved(usual));
            CHECK(same_work(tuned.plan.shape, usual.plan.shape));
            CHECK(tuned.tuning.searched);
            if (tuned.tuning.note.empty()) {
                ++taken;
                CHECK(tuned.plan.offload.pipeline_slots == window);
                continue;
            }
            costly += tuned.tuning.note.find("too little memory") != std::string::npos ? 1U : 0U;
            CHECK(tuned.settings.tuning == Tuning{});
            CHECK(tuned.tuning.used == usual.tuning.used);
            CHECK(tuned.tuning.gain == 1);
        }
    }
    CHECK(taken > 0);
    CHECK(costly > 0);
}

TEST_CASE("run tuning: a drive that `bench storage --tune` knows is the profile's too") {
    const TemporaryFolder folder;
    const auto settings = settings_on(folder);
    CHECK(tuned_drives(settings) == TunedDrives::searched);
    store_drive_settings(
        settings.profile,
        {file_system_identity(folder.path()), 1, "threads", 2 * mib, 7, {1e9, 1e9, 1e9}});
    const auto tuned =
        plan_with_tuning(make_layout(settings), settings, budgets_of(38 * mib), std::nullopt);
    CHECK(tuned.tuning.used.io_depth == 7);
    CHECK(source(tuned.tuning, &Tuning::io_depth) == TuningSource::profile);
    CHECK(source(tuned.tuning, &Tuning::chunk_bytes) == TuningSource::default_value);
    CHECK(tuned_drives(settings) == TunedDrives::left_alone);
}

TEST_CASE("first use: long runs with state on drives are searched for, once") {
    const TemporaryFolder folder;
    auto settings = settings_on(folder);
    settings.steps = 1000;
    PlannedRun run{
        .settings = settings, .layout = make_layout(settings), .budgets = {}, .plan = {}};
    run.plan = plan_with_tuning(run.layout, settings, budgets_of(38 * mib), std::nullopt).plan;
    CHECK(search_s(run, 1) == tuning_s);
    CHECK(search_s(run, 0.4) == 0);  // too short a run
    CHECK(search_s(run, 0) == 0);
    run.settings.resume = true;  // what is left of it counts
    CHECK(search_s(run, 1, {.steps = 500}) == tuning_s);
    CHECK(search_s(run, 1, {.steps = 600}) == 0);
    CHECK(search_s(run, 1, {.steps = 2000}) == 0);
    run.settings.steps = 0;
    run.settings.budget_s = 3600;
    CHECK(search_s(run, 0) == tuning_s);
    CHECK(search_s(run, 0, {.steps = 9, .elapsed_s = 3000}) == tuning_s);
    CHECK(search_s(run, 0, {.steps = 9, .elapsed_s = 3300}) == 0);
    run.settings.probe = "off";
    CHECK(search_s(run, 0) == 0);
    run.settings.tune = "1.5s";
    CHECK(search_s(run, 0) == 1.5);
    run.settings.tuning.update_threads = 1;
    CHECK(search_s(run, 0) == 0);
    run.settings.tuning = {};
    run.tuning.searched = true;
    CHECK(search_s(run, 0) == 0);
    run.tuning.searched = false;
    run.settings.tune = "off";
    CHECK(search_s(run, 0) == 0);
    run.settings.tune = "2s";
    run.plan = plan_with_tuning(run.layout, settings, budgets_of(256 * mib), std::nullopt).plan;
    CHECK(search_s(run, 1) == 0);  // all of it in memory
}

TEST_CASE("first use: what is kept is told, and what cannot be kept too") {
    const TemporaryFolder folder;
    const auto settings = settings_on(folder);
    const auto found = found_for(settings, 38 * mib, {});
    CHECK_THAT(keep_tuning(settings.profile, found),
               Contains("kept in " + settings.profile.string()));
    CHECK(load_profiles(settings.profile).tunings == std::vector{found});
    CHECK_THAT(keep_tuning({}, found), Contains("not kept"));
    CHECK_THAT(keep_tuning(settings.profile / "below a file", found), Contains("not kept"));
}
