// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
//
// `spillway bench step` by its verb, on few elements: what is tested is what it says and leaves,
// not how fast the machine is.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/cli/usage_error.h"
#include "engine/cli/verbs/bench.h"
#include "engine/cli/verbs/bench_step_run.h"
#include "engine/cli/verbs/bench_step_tune.h"
#include "engine/measure/profile.h"
#include "offload/plan.h"
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

Outcome step(const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"step", "--threads", "2", "--steps", "2"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    std::ostringstream human;
    std::ostringstream result;
    Console console(human, result, HumanStream::plain);
    const int code = run_bench(arguments, console);
    return {code, human.str(), result.str()};
}

nlohmann::json measured(std::vector<std::string> more) {
    more.insert(more.end(), {"--json", "-", "--profile", "/dev/null/none"});
    const auto ended = step(more);
    REQUIRE(ended.code == 0);
    return nlohmann::json::parse(ended.result);
}

std::size_t files_below(const std::filesystem::path& folder) {
    const std::filesystem::recursive_directory_iterator all(folder);
    return static_cast<std::size_t>(std::count_if(
        begin(all), end(all), [](const auto& entry) { return entry.is_regular_file(); }));
}

}  // namespace

TEST_CASE("bench step: a trace's lanes add up to its wall time, and hold every byte moved") {
    const TemporaryFolder folder;
    const auto file = folder.path() / "t.json";
    const auto root =
        measured({"--elements", "3000001", "--host-mem", "8MiB", "--chunk-size", "64KiB", "--nvme",
                  folder.path().string(), "--trace", file.string()});
    std::ifstream in(file);
    const auto trace = nlohmann::json::parse(in);
    double read_bytes = 0;
    std::size_t steps = 0;
    for (const auto& event : trace["traceEvents"]) {
        read_bytes += event["name"] == "read" ? event["args"]["bytes"].get<double>() : 0.0;
        steps += event["name"] == "step" ? 1U : 0U;
    }
    CHECK(steps == 2);
    const auto moved = root["nvme_bytes_per_parameter"].get<double>() * 3000001;
    // Two steps, half of what they move; but for what is read ahead.
    CHECK(read_bytes == Approx(moved).epsilon(0.3));
    for (const auto& lane : trace["otherData"]["lanes"]) {
        double sum = lane["busy_s"];
        for (const auto& idle : lane["idle_s"])
            sum += idle.get<double>();
        CHECK(sum == Approx(trace["otherData"]["wall_s"].get<double>()));
    }
    CHECK(root["trace"]["lanes"].size() == trace["otherData"]["lanes"].size());
}

TEST_CASE("bench step: state on a drive moves 20 bytes a parameter, and nothing is left there") {
    const TemporaryFolder folder;
    for (const std::string durable : {"on", "off"}) {
        CAPTURE(durable);
        const auto root =
            measured({"--elements", "6000001", "--host-mem", "12MiB", "--chunk-size", "64KiB",
                      "--nvme", folder.path().string(), "--durable", durable});
        for (const char* const key : {"predicted_s", "measured_s", "bound_s", "attained",
                                      "least_attained", "most_attained"})
            CHECK(root[key].get<double>() > 0);
        // 10 read and 10 written of what is not resident, in whole tiles.
        const auto state = root["state_bytes"].get<double>();
        const auto moved = 2 * (state - root["resident_state_bytes"].get<double>());
        CHECK(moved > 0);
        CHECK(root["nvme_bytes_per_parameter"].get<double>() * 6000001 == Approx(moved));
        CHECK(state == Approx(10.0 * 6000001).epsilon(0.01));
        CHECK(root["verified_elements"] == 5000);
        CHECK(root["interrupted"] == false);
        CHECK(root["durable"] == durable);
        CHECK(files_below(folder.path()) == 0);
    }
}

TEST_CASE("bench step: lossy state moves fewer bytes, and has its reference's bits") {
    const TemporaryFolder folder;
    for (const auto& [state, at_rest] :
         {std::pair<std::string, double>{"bf16", 6}, {"int8", 4.25}}) {
        CAPTURE(state);
        const auto root = measured({"--elements", "5000000", "--host-mem", "8MiB", "--chunk-size",
                                    "64KiB", "--nvme", folder.path().string(), "--state", state});
        CHECK(root["state_bytes"].get<double>() == Approx(at_rest * 5000000).epsilon(0.01));
        CHECK(root["nvme_bytes_per_parameter"].get<double>() > at_rest);
        CHECK(root["verified_elements"] == 20 * 256);
        CHECK(root["state"] == state);
    }
}

TEST_CASE("bench step: an optimizer of whole tensors reads more than it writes, and is verified") {
    const TemporaryFolder folder;
    const auto root = measured({"--elements", "5000000", "--host-mem", "8MiB", "--chunk-size",
                                "64KiB", "--nvme", folder.path().string(), "--optimizer", "lamb"});
    const auto moved = root["nvme_bytes_per_parameter"].get<double>() * 5000000;
    const auto on_drive =
        root["state_bytes"].get<double>() - root["resident_state_bytes"].get<double>();
    CHECK(moved > 2.5 * on_drive);
    CHECK(moved < 3.01 * on_drive);
    CHECK(root["verified_elements"] == 5000000);
    CHECK(measured({"--elements", "70001", "--optimizer", "lars", "--state",
                    "int8"})["verified_elements"] == 70001);
}

TEST_CASE("bench step: without a drive all is in memory") {
    const auto root = measured({"--elements", "600001", "--optimizer", "lion"});
    CHECK(root["nvme_bytes_per_parameter"] == 0);
    CHECK(root["state_bytes"] == root["resident_state_bytes"]);
    CHECK(root["bound_by"] != "nvme");
    CHECK_THAT(step({"--elements", "1"}).human,
               Contains("attained") && Contains("verified 1 elements"));
}

TEST_CASE("bench step: several drives share the state") {
    const TemporaryFolder first;
    const TemporaryFolder second;
    const auto root =
        measured({"--elements", "3000000", "--host-mem", "20MiB", "--chunk-size", "64KiB", "--nvme",
                  first.path().string() + "," + second.path().string()});
    CHECK(root["nvme_bytes_per_parameter"].get<double>() > 0);
    CHECK(files_below(first.path()) + files_below(second.path()) == 0);
}

TEST_CASE("bench step: what cannot be measured is refused by name") {
    CHECK_THROWS_WITH(step({"--elements", "0"}), Contains("--elements") && Contains("0 elements"));
    CHECK_THROWS_WITH(step({"--elements", "1000000000000000"}), Contains("--elements"));
    CHECK_THROWS_WITH(step({"--nvme", "/nowhere/at/all"}), Contains("/nowhere/at/all"));
    CHECK_THROWS_WITH(step({"--state", "fp64"}), Contains("fp64"));
    CHECK_THROWS_WITH(step({"--steps", "0"}), Contains("steps"));
    CHECK_THROWS_WITH(step({"--elements", "1", "--trace", "./t.json", "--json", "t.json"}),
                      Contains("are one file; name two"));
    CHECK_THROWS_AS(step({"--elements", "600001", "--host-mem", "1MiB"}), offload::PlanRefused);
    CHECK(step({"--help"}).code == 0);
    CHECK_THAT(step({"--help"}).result, Contains("--host-mem") && Contains("--durable"));
}

TEST_CASE("bench step: between two steps it can be stopped") {
    int asked = 0;
    StepBenchOptions options{.elements = 70'000, .host_bytes = std::size_t{64} << 20, .steps = 50};
    options.stop = [&] { return ++asked == 3; };
    const auto result = run_step_bench(options);
    CHECK(result.interrupted);
    CHECK(asked == 3);
    CHECK(result.measured_s == 0);
}

TEST_CASE("bench step: a tuning is searched for, told, and kept for runs like it") {
    const TemporaryFolder folder;
    std::filesystem::create_directory(folder.path() / "drive");
    const auto profile = folder.path() / "profile.json";
    const auto ended = step({"--elements", "3000000", "--host-mem", "48MiB", "--nvme",
                             (folder.path() / "drive").string(), "--tune", "0.4s", "--profile",
                             profile.string(), "--durable", "off", "--json", "-"});
    REQUIRE(ended.code == 0);
    const auto root = nlohmann::json::parse(ended.result);
    const auto stored = load_profiles(profile);
    REQUIRE(stored.tunings.size() == 1);
    const auto& found = stored.tunings.front();
    CHECK(root["tuning"]["gain"] == found.gain);
    CHECK(root["tuning"]["chunk_bytes"] == found.values.chunk_bytes);
    CHECK(found.key.device == "cpu");
    CHECK(found.key.host_bytes == std::size_t{32} << 20);
    CHECK(found.key.threads == 2);
    CHECK_THAT(ended.human, Contains("kept in " + profile.string()));
    CHECK(files_below(folder.path() / "drive") == 0);
}

TEST_CASE("bench step: what a tuning would move is what steps by it move") {
    const TemporaryFolder folder;
    constexpr std::uint64_t elements = 6'000'001;
    StepBenchOptions options{
        .elements = elements, .host_bytes = std::size_t{24} << 20, .nvme = {folder.path()}};
    std::vector<double> all;
    for (const auto& [optimizer, durable] : {std::pair{"adamw", "on"}, {"lamb", "off"}}) {
        options.durability =
            durable == std::string("on") ? offload::Durability::on : offload::Durability::off;
        if (optimizer == std::string("lamb"))
            options.hyper = offload::HyperGroups::Layerwise{cpu_optim::LambHyperParameters{}};
        for (const std::uint64_t chunk_kib : {64U, 512U}) {
            CAPTURE(optimizer, chunk_kib);
            const auto traffic =
                step_bench_traffic(options, {.chunk_bytes = chunk_kib << 10, .update_window = 0});
            REQUIRE(traffic.has_value());
            const auto root =
                measured({"--elements", std::to_string(elements), "--host-mem", "24MiB", "--nvme",
                          folder.path().string(), "--optimizer", optimizer, "--durable", durable,
                          "--chunk-size", fmt::format("{}KiB", chunk_kib)});
            const auto moved = root["nvme_bytes_per_parameter"].get<double>() * elements;
            CHECK(moved == Approx(static_cast<double>(*traffic)));
            all.push_back(moved);
        }
    }
    CHECK(all[1] > 1.05 * all[0]);  // larger chunks leave less memory to the state
    CHECK_FALSE(
        step_bench_traffic(options, {.chunk_bytes = 16 << 20, .update_window = 16}).has_value());
}

TEST_CASE("bench step: what a search needs and what it finds itself is said") {
    const auto [more, said] = GENERATE(table<std::vector<std::string>, std::string>({
        {{"--tune", "1s"}, "--tune searches on the drives of --nvme"},
        {{"--tune", "1s", "--nvme", "/tmp", "--chunk-size", "64KiB"}, "leave it out"},
        {{"--tune", "0s"}, "must be above 0"},
        {{"--tune", "1s", "--nvme", "/tmp", "--profile", "/dev/null"}, "/dev/null"},
    }));
    try {
        static_cast<void>(step(more));
        FAIL("it was done");
    } catch (const UsageError& error) {
        REQUIRE_FALSE(error.problems().empty());
        CHECK_THAT(error.problems().front(), Contains(said));
    }
}

}  // namespace spillway::engine
