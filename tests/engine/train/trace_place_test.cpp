// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/train/trace_place.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <catch2/catch.hpp>

#include "tests/support/temporary_folder.h"

using namespace spillway::engine;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

TEST_CASE("trace_place: a trace in place of another file is refused by what the user named") {
    const spillway::testing::TemporaryFolder folder;
    std::ofstream(folder.path() / "second.txt") << "text";
    fs::create_hard_link(folder.path() / "second.txt", folder.path() / "same.txt");
    fs::create_directory(folder.path() / "out");
    fs::create_symlink("out", folder.path() / "link");
    TrainSettings settings;
    settings.json = fs::relative(folder.path() / "r.json").string();
    settings.data = {"first.txt", (folder.path() / "second.txt").string()};
    settings.replay_progress = folder.path() / "m.jsonl";
    settings.profile = folder.path() / "p.json";
    settings.out = folder.path() / "out";
    std::string said;
    SECTION("the summary, not there yet, by another spelling") {
        settings.trace = folder.path() / "none" / ".." / "r.json", said = "--json";
    }
    SECTION("the second of the data, by another name") {
        settings.trace = folder.path() / "same.txt", said = "--data";
    }
    SECTION("the log that is replayed") {
        settings.trace = settings.replay_progress, said = "--replay-progress";
    }
    SECTION("the profile") {
        settings.trace = settings.profile, said = "--profile";
    }
    SECTION("the log, through a link to its folder") {
        settings.trace = folder.path() / "link" / "metrics.jsonl", said = "the run's log";
    }
    const auto problems = trace_problems(settings);
    REQUIRE(problems.size() == 1);
    CHECK_THAT(problems.front(), Contains("--trace " + settings.trace.string() + " and " + said) &&
                                     Contains("are one file; name two"));
}

TEST_CASE("trace_place: a file of its own, and none, are no problem") {
    TrainSettings settings;
    settings.json = "-";
    CHECK(trace_problems(settings).empty());
    settings.trace = "-";
    CHECK(trace_problems(settings).empty());
}
