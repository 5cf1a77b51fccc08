// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/train/metrics_log.h"

#include <fstream>
#include <limits>
#include <system_error>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/support/temporary_folder.h"

using namespace spillway::engine;
using spillway::testing::TemporaryFolder;

namespace {

StepMetrics step(std::uint64_t iteration) {
    return {.iteration = iteration,
            .update = iteration,
            .loss = 2.5,
            .progress = {},
            .evaluation_loss = {}};
}

std::vector<nlohmann::json> lines(const TemporaryFolder& folder) {
    std::ifstream file(folder.path() / MetricsLog::file_name);
    std::vector<nlohmann::json> all;
    for (std::string line; std::getline(file, line);)
        all.push_back(nlohmann::json::parse(line));
    return all;
}

void write_steps(const TemporaryFolder& folder, std::uint64_t count) {
    MetricsLog log(folder.path(), 0);
    for (std::uint64_t i = 1; i <= count; ++i)
        log.append(step(i));
}

}  // namespace

TEST_CASE("metrics_log: one line a step, with null for what is not finite") {
    const TemporaryFolder folder;
    {
        MetricsLog log(folder.path(), 0);
        auto metrics = step(1);
        metrics.loss = std::numeric_limits<double>::quiet_NaN();
        metrics.gradient_norm = std::numeric_limits<double>::infinity();
        metrics.skipped = true;
        metrics.progress = 0.1;
        log.append(metrics);
    }
    const auto all = lines(folder);
    REQUIRE(all.size() == 1);
    CHECK(all[0]["loss"].is_null());
    CHECK(all[0]["grad_norm"].is_null());
    CHECK(all[0]["skipped"] == true);
    CHECK(all[0]["progress"] == 0.1);
    CHECK_FALSE(all[0].contains("loss_eval"));
}

TEST_CASE("metrics_log: a resume cuts the log back to its iteration") {
    const TemporaryFolder folder;
    write_steps(folder, 10);
    {
        MetricsLog log(folder.path(), 7);
        log.append(step(8));
    }
    const auto all = lines(folder);
    REQUIRE(all.size() == 8);
    for (std::size_t i = 0; i < all.size(); ++i)
        CHECK(all[i]["iteration"] == i + 1);
}

TEST_CASE("metrics_log: a line that a crash cut is dropped, wherever it stands") {
    const TemporaryFolder folder;
    write_steps(folder, 3);
    const auto cut = GENERATE(as<std::string>{}, "{\"iteration\": 4, \"lo", "{\"iteration\": 4}",
                              "garbage\n", "{\"iteration\": -1}\n");
    std::ofstream(folder.path() / MetricsLog::file_name, std::ios::app) << cut;
    {
        MetricsLog log(folder.path(), 100);
        log.append(step(4));
    }
    const auto all = lines(folder);
    REQUIRE(all.size() == 4);
    CHECK(all.back()["iteration"] == 4);
}

TEST_CASE("metrics_log: its last whole line tells how far a run has come") {
    const TemporaryFolder folder;
    CHECK(logged_end(folder.path()).iteration == 0);
    {
        MetricsLog log(folder.path(), 0);
        log.append(step(1));
        auto second = step(2);
        second.elapsed_s = 4.5;
        log.append(second);
    }
    CHECK(logged_end(folder.path()).iteration == 2);
    CHECK(logged_end(folder.path()).elapsed_s == 4.5);
    const auto path = folder.path() / MetricsLog::file_name;
    std::ofstream(path, std::ios::app) << R"({"iteration":3,"elaps)";  // cut
    CHECK(logged_end(folder.path()).iteration == 2);
    std::ofstream(path) << "[]\n";
    CHECK(logged_end(folder.path()).elapsed_s == 0);
}

TEST_CASE("metrics_log: a log that cannot be written is an error") {
    CHECK_THROWS_AS(MetricsLog("/nowhere", 0), std::system_error);
}
