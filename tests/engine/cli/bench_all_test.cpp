// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "engine/cli/usage_error.h"
#include "engine/cli/verbs/bench.h"
#include "engine/measure/profile.h"
#include "tests/support/temporary_folder.h"

namespace spillway::engine {

namespace {

using Catch::Matchers::Contains;
using testing::TemporaryFolder;

struct Outcome {
    int code = 0;
    std::string human;
    std::string result;
};

Outcome bench(const std::vector<std::string>& arguments) {
    std::ostringstream human;
    std::ostringstream result;
    Console console(human, result, HumanStream::plain);
    const int code = run_bench(arguments, console);
    return {code, human.str(), result.str()};
}

/// What is refused, all of it.
std::string refusal(const std::vector<std::string>& arguments) {
    try {
        static_cast<void>(bench(arguments));
    } catch (const UsageError& error) {
        std::string all;
        for (const auto& problem : error.problems())
            all += problem + "\n";
        return all;
    }
    return "none";
}

}  // namespace

TEST_CASE("bench memory: a rate for each number of threads, from memory that was verified") {
    const auto ended =
        bench({"memory", "--size", "8MiB", "--threads", "3", "--passes", "4", "--json", "-"});
    CHECK(ended.code == 0);
    CHECK_THAT(ended.human, Contains("GB/s") && Contains("verified"));
    const auto root = nlohmann::json::parse(ended.result);
    CHECK(root["size"] == 8 << 20);
    CHECK(root["interrupted"] == false);
    std::vector<int> threads;
    for (const auto& row : root["rows"]) {
        threads.push_back(row["threads"]);
        CHECK(row["least_bytes_per_s"] > 1e6);
        CHECK(row["least_bytes_per_s"] <= row["bytes_per_s"]);
        CHECK(row["bytes_per_s"] <= row["most_bytes_per_s"]);
    }
    CHECK(threads == std::vector{1, 2, 3});
}

TEST_CASE("bench memory: what measures nothing, or does not fit, is refused by name") {
    const auto said = refusal({"memory", "--size", "1KiB", "--threads", "0", "--passes", "0"});
    CHECK_THAT(said, Contains("--size is 1024 bytes; it must be 1048576 or more") &&
                         Contains("--threads") && Contains("--passes"));
    CHECK_THAT(refusal({"memory", "--size", "900TiB"}), Contains("are available"));
}

TEST_CASE("bench all: every bench in turn, its results and what is kept for plan and train") {
    const TemporaryFolder folder;
    const auto drive = folder.path() / "drive";
    std::filesystem::create_directory(drive);
    const auto profile = folder.path() / "profile.json";
    const auto ended =
        bench({"all", "--nvme", drive.string(), "--device", "sim:64MiB@4GB/s", "--elements",
               "2000000", "--host-mem", "48MiB", "--size", "64MiB", "--time", "0.5s", "--threads",
               "2", "--profile", profile.string(), "--json", "-"});
    REQUIRE(ended.code == 0);
    const auto root = nlohmann::ordered_json::parse(ended.result);
    std::vector<std::string> names;
    for (const auto& [name, value] : root.items())
        names.push_back(name);
    CHECK(names == std::vector<std::string>{"storage", "memory", "link", "adam", "step", "profile",
                                            "interrupted"});
    CHECK_FALSE(root["storage"]["rows"].empty());
    CHECK(root["memory"]["rows"].back()["threads"] == 2);
    CHECK(root["link"]["device"] == "sim:64MiB@4GB/s");
    CHECK(root["adam"]["parameters_per_s"] > 0);
    CHECK(root["step"]["nvme"] == drive.string());
    CHECK(root["interrupted"] == false);
    for (const auto* const name : {"== storage", "== memory", "== link", "== adam", "== step"})
        CHECK_THAT(ended.human, Contains(name));

    const auto stored = load_profiles(profile);
    CHECK(stored.drives.size() == 1);
    CHECK(stored.tunings.size() == 1);
    REQUIRE(stored.profiles.size() == 1);
    CHECK(root["profile"]["file"] == profile.string());
    CHECK(stored.profiles[0].key.device == "sim:64MiB@4GB/s");
    CHECK(stored.profiles[0].drive.has_value());
    CHECK(stored.profiles[0].to_device_bytes_per_s > 0);
    for (const auto& entry : std::filesystem::recursive_directory_iterator(drive))
        CHECK_FALSE(entry.is_regular_file());
}

TEST_CASE("bench all: without drives and device there is no storage and no link") {
    const TemporaryFolder folder;
    const auto profile = folder.path() / "profile.json";
    const auto ended = bench({"all", "--elements", "100000", "--size", "4MiB", "--threads", "1",
                              "--profile", profile.string(), "--json", "-"});
    REQUIRE(ended.code == 0);
    const auto root = nlohmann::json::parse(ended.result);
    CHECK_FALSE(root.contains("storage"));
    CHECK_FALSE(root.contains("link"));
    CHECK(root["step"]["nvme_bytes_per_parameter"] == 0);
    CHECK(load_profiles(profile).profiles.size() == 1);
}

TEST_CASE("bench all: what cannot be measured is refused by its own options' names") {
    const auto said = refusal({"all", "--nvme", "/nowhere/at/all", "--isa", "mmx", "--threads", "0",
                               "--time", "soon", "--profile", "/dev/null"});
    for (const auto* const part :
         {"--nvme: ", "/nowhere/at/all", "--isa: ", "--threads", "--time: ", "--profile: "})
        CHECK_THAT(said, Contains(part));
    CHECK_THAT(refusal({"all", "--device", "sim:no"}), Contains("--device: "));
    CHECK_THAT(refusal({"all", "--elements", "1000000000000000", "--size", "4MiB"}),
               Contains("bench adam: --elements"));
    CHECK_THAT(refusal({"al"}), Contains("\"al\" cannot be measured"));
    CHECK_THAT(bench({"--help"}).result, Contains("  all  ") && Contains("  memory  "));
}

}  // namespace spillway::engine
