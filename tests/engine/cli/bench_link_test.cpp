// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <sstream>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "engine/cli/usage_error.h"
#include "engine/cli/verbs/bench.h"

namespace spillway::engine {

namespace {

using Catch::Matchers::Contains;

struct Outcome {
    int code = 0;
    std::string human;
    std::string result;
};

Outcome link(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "link");
    std::ostringstream human;
    std::ostringstream result;
    Console console(human, result, HumanStream::plain);
    const int code = run_bench(arguments, console);
    return {code, human.str(), result.str()};
}

}  // namespace

TEST_CASE("bench link: a row for each direction and block, with the link's own rate") {
    const auto ended = link({"--device", "sim:1MiB@100MB/s", "--size", "256KiB", "--block",
                             "64KiB,256KiB", "--passes", "2", "--json", "-"});
    CHECK(ended.code == 0);
    CHECK_THAT(ended.human, Contains("host_to_device") && Contains("both_ways") &&
                                Contains("0.100 GB/s each way") && Contains("all as sent"));
    const auto root = nlohmann::json::parse(ended.result);
    CHECK(root["device"] == "sim:1MiB@100MB/s");
    CHECK(root["link_bytes_per_s"] == 100e6);
    REQUIRE(root["rows"].size() == 6);
    CHECK(root["rows"][0]["direction"] == "host_to_device");
    CHECK(root["rows"][1]["block_bytes"] == 256 << 10);
    CHECK(root["rows"][5]["bytes_per_s"].get<double>() > 0);
    CHECK(root["verified_bytes"] == 512 << 10);
    CHECK(root["interrupted"] == false);
}

TEST_CASE("bench link: what cannot be measured is refused by name") {
    CHECK_THROWS_WITH(link({}), Contains("needs a device"));
    CHECK_THROWS_WITH(link({"--device", "cpu"}), Contains("no link to measure"));
    CHECK_THROWS_WITH(link({"--device", "cuda:1023"}), Contains("cuda:1023"));
    CHECK_THROWS_WITH(link({"--device", "sim:1MiB", "--size", "1MiB", "--block", "64KiB"}),
                      Contains("--size"));
    CHECK_THROWS_WITH(link({"--device", "sim:1MiB", "--block", "many"}), Contains("--block"));
    CHECK_THROWS_AS(link({"--device", "sim:1MiB", "--size", "4KiB", "--block", "8KiB"}),
                    UsageError);
}

}  // namespace spillway::engine
