// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
//
// `spillway bench adam` by its verb, and once by the built program, which is interrupted: small
// tensors, since what is tested is what it says, not how fast the machine is.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/cli/usage_error.h"
#include "engine/cli/verbs/bench.h"
#include "engine/cli/verbs/bench_adam_run.h"
#include "engine/settings/optimizer_choice.h"
#include "tests/support/temporary_folder.h"

namespace spillway::engine {

namespace {

using Catch::Matchers::Contains;

struct Outcome {
    int code = 0;
    std::string human;
    std::string result;
};

/// A short measurement; flags in `more` replace those of the same name.
Outcome adam(const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"adam"};
    for (const std::string flag : {"--pairs", "--threads"})
        if (std::find(more.begin(), more.end(), flag) == more.end())
            arguments.insert(arguments.end(), {flag, "2"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    std::ostringstream human;
    std::ostringstream result;
    Console console(human, result, HumanStream::plain);
    const int code = run_bench(arguments, console);
    return {code, human.str(), result.str()};
}

nlohmann::json measured(std::vector<std::string> more) {
    more.insert(more.end(), {"--json", "-", "--elements", "600001"});
    const auto ended = adam(more);
    REQUIRE(ended.code == 0);
    return nlohmann::json::parse(ended.result);
}

}  // namespace

TEST_CASE("bench adam: the result of a small tensor has all that the design names") {
    const auto root = measured({});
    for (const char* const key :
         {"parameters_per_s", "bytes_per_s", "dram_bytes_per_s", "attained", "least_attained",
          "most_attained", "update_s", "scan_bytes_per_s", "read_bytes_per_s", "scan_attained"})
        CHECK(root[key].get<double>() > 0);
    CHECK(root["bytes_per_parameter"] == 28);
    CHECK(root["bytes_per_s"].get<double>() == Approx(28 * root["parameters_per_s"].get<double>()));
    CHECK(root["optimizer"] == "adamw");
    CHECK(root["state"] == "fp32");
    CHECK(root["elements"] == 600001);
    CHECK(root["threads"] == 2);
    CHECK(root["isa"] != "auto");
    CHECK(root["pairs"] == 2);
    CHECK(root["verified_elements"] == 78 * 256 + 600001 % 256);
    CHECK(root["interrupted"] == false);
    const auto human = adam({"--elements", "1"}).human;
    CHECK_THAT(human, Contains("parameters/s") && Contains("28 bytes moved a parameter") &&
                          Contains("attained") && Contains("verified 1 elements") &&
                          Contains("the cache of"));
}

TEST_CASE("bench adam: every optimizer, gradient and master form is measured and verified") {
    for (const auto& optimizer : measured_optimizer_names())
        for (const char* const weights : {"fp32", "split"})
            for (const char* const grad : {"fp32", "bf16", "fp16"}) {
                CAPTURE(optimizer, weights, grad);
                const auto root =
                    measured({"--optimizer", optimizer, "--weights", weights, "--grad", grad});
                CHECK(root["optimizer"] == optimizer);
                CHECK(root["weights"] == weights);
                CHECK(root["grad"] == grad);
                CHECK(root["verified_elements"] == 78 * 256 + 600001 % 256);
            }
}

TEST_CASE("bench adam: every optimizer is measured and verified in every format of state") {
    for (const auto& optimizer : measured_optimizer_names())
        for (const char* const state : {"bf16", "int8"})
            for (const char* const weights : {"fp32", "split"}) {
                CAPTURE(optimizer, state, weights);
                const auto root =
                    measured({"--optimizer", optimizer, "--state", state, "--weights", weights});
                CHECK(root["state"] == state);
                CHECK(root["verified_elements"] == 78 * 256 + 600001 % 256);
            }
}

TEST_CASE("bench adam: bytes that move are those of weight, state and gradient") {
    const auto bytes = [](const std::vector<std::string>& more) {
        return measured(more)["bytes_per_parameter"].get<double>();
    };
    CHECK(bytes({"--grad", "bf16", "--weights", "split"}) == 26);
    CHECK(bytes({"--optimizer", "sgd"}) == 20);
    CHECK(bytes({"--optimizer", "sgd", "--momentum", "0"}) == 12);
    CHECK(bytes({"--optimizer", "lion", "--grad", "fp16"}) == 18);
    CHECK(bytes({"--state", "bf16"}) == 20);
    CHECK(bytes({"--state", "int8", "--grad", "bf16"}) == 14 + 4.0 / 256);
    CHECK(bytes({"--state", "int8", "--optimizer", "lion"}) == 14 + 2.0 / 256);
    // 16 read to measure, 16 read and 12 written; LARS measures weight and gradient alone.
    CHECK(bytes({"--optimizer", "lamb"}) == 44);
    CHECK(bytes({"--optimizer", "lars", "--weights", "split"}) == 28);
    CHECK(bytes({"--optimizer", "lamb", "--state", "bf16", "--grad", "bf16"}) == 28);
    CHECK(bytes({"--optimizer", "lamb", "--state", "int8"}) == 26 + 6.0 / 256);
    CHECK(bytes({"--optimizer", "lars", "--state", "int8"}) == 22 + 2.0 / 256);
}

TEST_CASE("bench adam: the instruction set asked for is the one that runs") {
    for (const auto isa : cpu_optim::supported_isas()) {
        const std::string name(cpu_optim::isa_name(isa));
        CHECK(measured({"--isa", name})["isa"] == name);
    }
}

TEST_CASE("bench adam: bad input is refused by name") {
    const auto [more, said] = GENERATE(table<std::vector<std::string>, std::string>({
        {{"--optimizer", "adamv"}, "did you mean"},
        {{"--grad", "fp8"}, "--grad"},
        {{"--weights", "bf16"}, "--weights"},
        {{"--state", "fp23"}, "\"fp23\" is not one of fp32, bf16, int8"},
        {{"--isa", "neon"}, "--isa: unknown instruction set \"neon\""},
        {{"--elements", "0"}, "--elements: 0 elements were asked for"},
        {{"--elements", "-3"}, "--elements"},
        {{"--elements", "18446744073709551615"}, "choose 1 to 17592186044416"},
        {{"--elements", "10000000000000"}, "are available (limited by"},
        {{"--threads", "0"}, "--threads: 0 threads"},
        {{"--pairs", "0"}, "--pairs: 0 pairs"},
        {{"--optimizer", "sgd", "--momentum", "-1"}, "SGD: momentum is -1"},
        {{"--size", "8MiB"}, "--size"},
    }));
    CHECK_THROWS_AS(adam(more), UsageError);
    CHECK_THROWS_WITH(adam(more), Contains(said));
}

TEST_CASE("bench adam: every problem is named at once") {
    CHECK_THROWS_WITH(adam({"--isa", "neon", "--elements", "0"}),
                      Contains("--isa") && Contains("--elements"));
}

TEST_CASE("bench adam: a stop between passes ends it without figures") {
    AdamBenchOptions options{.elements = 1000};
    int asked = 0;
    options.stop = [&] { return ++asked > 3; };
    const auto result = run_adam_bench(options);
    CHECK(result.interrupted);
    CHECK(result.parameters_per_s == 0);
    CHECK(result.verified_elements == 0);
    options.pairs = 0;
    CHECK_THROWS_AS(run_adam_bench(options), std::invalid_argument);
}

TEST_CASE("bench adam: an interrupt ends the program with 130 and a result that says so") {
    const testing::TemporaryFolder folder;
    const std::string json = (folder.path() / "r.json").string();
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        const int nowhere = ::open("/dev/null", O_RDWR);
        ::dup2(nowhere, STDERR_FILENO);
        ::execl(SPILLWAY_PROGRAM, "spillway", "bench", "adam", "--elements", "1000000", "--pairs",
                "4000000000", "--json", json.c_str(), nullptr);
        ::_exit(127);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    ::kill(child, SIGINT);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 130);
    std::ifstream file(json);
    CHECK(nlohmann::json::parse(file)["interrupted"] == true);
}

TEST_CASE("bench adam: help shows the options with their defaults") {
    const auto ended = adam({"--help"});
    CHECK(ended.code == 0);
    CHECK_THAT(ended.result, Contains("--elements") && Contains("67108864") &&
                                 Contains("adamw|adam|sgd") && Contains("--weights"));
}

}  // namespace spillway::engine
