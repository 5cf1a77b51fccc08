// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/plan/plan_report.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

using namespace spillway;
using namespace spillway::engine;

namespace {

TrainSettings settings_of_a_run() {
    TrainSettings settings;
    settings.model = "gpt2:4x192x4";
    settings.context = 96;
    settings.seq = 80;
    settings.tuning.chunk_bytes = std::uint64_t{64} << 10;
    settings.batch = 4;
    settings.threads = 1;
    settings.nvme = "/tmp";
    settings.commit_every = "100";
    return settings;
}

PlannedRun planned(const TrainSettings& settings, std::size_t host_bytes) {
    PlannedRun run{settings, make_layout(settings), {}, {}};
    run.budgets.host_bytes = run.budgets.device_bytes = host_bytes;
    run.plan = plan_training(
        run.layout, run.settings, 1, run.budgets,
        settings.nvme.empty() ? offload::NvmeTier::absent : offload::NvmeTier::present);
    return run;
}

MachineSpeed speed_of_a_machine() {
    return {.rates = {.nvme_read = 1e8, .nvme_write = 1e8, .nvme_mixed = 1e8, .dram = 1e10},
            .update = {.parameters_per_s = 1e9, .checksum_bytes_per_s = 1e10},
            .pass = {.forward_s = 1e-4, .backward_s = 2e-4},
            .pass_tokens = 320};
}

constexpr std::size_t little = std::size_t{38} << 20;
constexpr std::size_t plenty = std::size_t{256} << 20;

}  // namespace

TEST_CASE("plan_report: every byte of every plane is somewhere, and traffic is what is not here") {
    for (const auto bytes : {little, plenty}) {
        PlanReport report{.run = planned(settings_of_a_run(), bytes), .available = {}};
        const auto json = nlohmann::json::parse(plan_report_json(report));
        const auto tiles = report.run.layout.order.tiles();
        std::uint64_t on_drive = 0;
        for (const auto& place : json.at("placement")) {
            const std::uint64_t at_rest = place.at("host_bytes").get<std::uint64_t>() +
                                          place.at("nvme_bytes").get<std::uint64_t>();
            const auto name = place.at("plane").get<std::string>();
            CHECK(at_rest ==
                  tiles * offload::tile_elements * (name == "weight" || name == "residue" ? 2 : 4));
            on_drive += place.at("nvme_bytes").get<std::uint64_t>();
        }
        const auto& traffic = json.at("bytes_per_step");
        CHECK(traffic.at("nvme_written") == on_drive);
        CHECK((on_drive == 0) == (bytes == plenty));
        CHECK(traffic.at("nvme_read").get<std::uint64_t>() ==
              on_drive + traffic.at("nvme_weights_read").get<std::uint64_t>());
        CHECK(json.at("prediction").is_null());
        CHECK_FALSE(plan_report_lines(report).empty());
    }
}

TEST_CASE("plan_report: what is not exact says so, and how much it takes") {
    for (const auto& [state, bytes] :
         std::vector<std::pair<std::string, double>>{{"fp32", 12}, {"bf16", 8}, {"int8", 6.25}}) {
        CAPTURE(state);
        auto settings = settings_of_a_run();
        settings.state = state;
        const PlanReport report{.run = planned(settings, plenty), .available = {}};
        const auto json = nlohmann::json::parse(plan_report_json(report));
        CHECK(json.at("exact") == (state == "fp32"));
        CHECK(json.at("rest_bytes_per_parameter") == bytes);
        const auto lines = plan_report_lines(report);
        CHECK(std::ranges::any_of(lines, [&](const std::string& line) {
                  return line.find("state in " + state + ": rounded, not exact") !=
                         std::string::npos;
              }) == (state != "fp32"));
    }
}

TEST_CASE("plan_report: endurance counts steps and commits") {
    const auto run = planned(settings_of_a_run(), plenty);
    StepPrediction prediction;
    prediction.seconds = 8.64;  // ten thousand steps a day, a hundred commits
    const auto tiles = run.layout.order.tiles();
    const auto planes_bytes = static_cast<double>(tiles * offload::tile_elements * 12);
    const auto commit_bytes = static_cast<double>(run.plan.offload.commit_bytes);
    CHECK(commit_bytes > planes_bytes);  // a table, too
    CHECK(commit_bytes < planes_bytes * 1.05);
    const auto endurance = drive_endurance(run, prediction, commit_bytes * 1000);
    CHECK(endurance.written_bytes_per_day == Approx(commit_bytes * 100));
    CHECK(endurance.endurance_days.value() == Approx(10));
    CHECK_FALSE(drive_endurance(run, prediction, 0).endurance_days.has_value());

    const auto driven = planned(settings_of_a_run(), little);
    CHECK(drive_endurance(driven, prediction, 0).written_bytes_per_day >=
          static_cast<double>(driven.plan.offload.nvme_written_bytes_per_step) * 10000);
    // What updates write there already is no cost of a commit.
    CHECK(static_cast<double>(driven.plan.offload.commit_bytes) < commit_bytes);
}

TEST_CASE("plan_report: the compute-optimal run spends the same operations") {
    auto run = planned(settings_of_a_run(), plenty);
    run.settings.budget_s = 1000;
    const auto costs = step_costs(speed_of_a_machine(), run);
    const auto prediction = predict_step(costs, update_timing(run.settings));
    const auto optimum = compute_optimum(run, costs, prediction);
    CHECK(optimum.optimal_tokens == Approx(20 * optimum.optimal_parameters));
    const double operations_per_s =
        6.0 * static_cast<double>(run.layout.order.parameters()) * 320 / 3e-4;
    CHECK(6 * optimum.optimal_parameters * optimum.optimal_tokens ==
          Approx(operations_per_s * 1000));
    CHECK(static_cast<double>(optimum.tokens) ==
          Approx(1000 / prediction.seconds * 320).epsilon(1e-3));
}

TEST_CASE("plan_advice: a run that waits for the drive is told what would help, best first") {
    const auto run = planned(settings_of_a_run(), little);
    const auto speed = speed_of_a_machine();
    const auto prediction = predict_step(step_costs(speed, run), update_timing(run.settings));
    const auto advice = advise(run, speed, prediction, {.bytes = plenty, .limited_by = "a test"});
    REQUIRE(advice.size() == 2);
    CHECK(advice[0].gain >= advice[1].gain);
    CHECK(advice[1].gain >= 1.03);
    for (const auto& one : advice) {
        CAPTURE(one.change);
        CHECK(one.tokens_per_s > 320 / prediction.seconds);
        CHECK_FALSE(one.meaning.empty());
    }
}

TEST_CASE("plan_advice: a run that waits for nothing is left alone") {
    const auto run = planned(settings_of_a_run(), plenty);
    auto speed = speed_of_a_machine();
    speed.pass = {.forward_s = 1, .backward_s = 2};
    const auto prediction = predict_step(step_costs(speed, run), update_timing(run.settings));
    CHECK(advise(run, speed, prediction, {.bytes = plenty, .limited_by = "a test"}).empty());
}
