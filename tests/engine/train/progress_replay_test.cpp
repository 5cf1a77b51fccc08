// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/train/progress_replay.h"

#include <fstream>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "engine/settings/schedule.h"
#include "engine/train/time_budget.h"
#include "tests/support/temporary_folder.h"

using namespace spillway::engine;
using spillway::testing::TemporaryFolder;

namespace {

std::filesystem::path write(const TemporaryFolder& folder, const std::string& text) {
    const auto path = folder.path() / "metrics.jsonl";
    std::ofstream(path, std::ios::binary) << text;
    return path;
}

}  // namespace

TEST_CASE("a replay gives the very learning rates of the run that followed the clock") {
    const TemporaryFolder folder;
    const Schedule schedule({ScheduleShape::cosine, 3e-4, 0.1, 5});
    TimeBudget budget(1.0, 0);
    std::vector<double> rates;
    std::string log;
    double now = 0;
    for (std::uint64_t step = 0; budget.step_fits(now); ++step) {
        const double progress = budget.progress(now);
        rates.push_back(schedule.at_progress(step, progress));
        log +=
            nlohmann::json{{"iteration", step + 1}, {"loss", 1.5}, {"progress", progress}}.dump() +
            "\n";
        budget.step_ended(now += 0.01 + 0.001 / static_cast<double>(step + 3));
    }
    const ProgressReplay replay(write(folder, log));
    REQUIRE(replay.steps() == rates.size());
    REQUIRE(rates.size() > 80);
    for (std::uint64_t step = 0; step < rates.size(); ++step)
        REQUIRE(schedule.at_progress(step, replay.progress(step)) == rates[step]);
    CHECK_THROWS_WITH(replay.progress(rates.size()), Catch::Contains("it holds"));
}

TEST_CASE("a last line that a crash cut is not counted") {
    const TemporaryFolder folder;
    const ProgressReplay replay(write(folder,
                                      "{\"iteration\":1,\"progress\":0}\n"
                                      "{\"iteration\":2,\"progress\":0.5}\n"
                                      "{\"iteration\":3,\"prog"));
    CHECK(replay.steps() == 2);
    CHECK(replay.progress(1) == 0.5);
}

TEST_CASE("a log that cannot be replayed is refused, naming file, line and reason") {
    struct Row {
        const char* text;
        const char* reason;
    };
    const auto row =
        GENERATE(Row{"", "holds no step"}, Row{"nonsense\n", "line 1 is no JSON object"},
                 Row{"[1]\n", "line 1 is no JSON object"},
                 Row{"{\"progress\":0}\n", "line 1 has iteration none, but 1 is next"},
                 Row{"{\"iteration\":2,\"progress\":0}\n", "line 1 has iteration 2, but 1 is next"},
                 Row{"{\"iteration\":1}\n", "was not made with a time budget"},
                 Row{"{\"iteration\":1,\"progress\":null}\n", "was not made with a time budget"},
                 Row{"{\"iteration\":1,\"progress\":1.5}\n", "line 1 has progress 1.5"},
                 Row{"{\"iteration\":1,\"progress\":0.5}\n{\"iteration\":2,\"progress\":0.4}\n",
                     "line 2 has progress 0.4; it must be from 0.5"});
    INFO(row.text);
    const TemporaryFolder folder;
    const auto path = write(folder, row.text);
    CHECK_THROWS_WITH(ProgressReplay(path),
                      Catch::Contains(path.string()) && Catch::Contains(row.reason));
    CHECK_THROWS_WITH(ProgressReplay(folder.path() / "missing"),
                      Catch::Contains("missing: cannot be read"));
}
