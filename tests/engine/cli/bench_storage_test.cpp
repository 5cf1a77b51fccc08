// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
//
// `spillway bench storage` by its verb, and once by the built program, which is interrupted.
#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
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
#include "engine/measure/profile.h"
#include "tests/support/temporary_folder.h"

namespace spillway::engine {

namespace {

using Catch::Matchers::Contains;
namespace fs = std::filesystem;

struct Outcome {
    int code = 0;
    std::string human;
    std::string result;
};

Outcome bench(std::vector<std::string> arguments) {
    std::ostringstream human;
    std::ostringstream result;
    Console console(human, result, HumanStream::plain);
    const int code = run_bench(arguments, console);
    return {code, human.str(), result.str()};
}

/// A small measurement in `folder`; flags in `more` replace those of the same name.
std::vector<std::string> storage(const fs::path& folder, const std::vector<std::string>& more) {
    std::vector<std::string> all{"storage"};
    const std::array<std::array<std::string, 2>, 5> usual{{{"--dir", folder.string()},
                                                           {"--size", "8MiB"},
                                                           {"--block", "64KiB"},
                                                           {"--depth", "4"},
                                                           {"--time", "0.6s"}}};
    for (const auto& [flag, value] : usual)
        if (std::find(more.begin(), more.end(), flag) == more.end())
            all.insert(all.end(), {flag, value});
    all.insert(all.end(), more.begin(), more.end());
    return all;
}

}  // namespace

TEST_CASE("bench storage: the rows of a small run have all that the design names") {
    const testing::TemporaryFolder folder;
    const auto ended = bench(storage(folder.path(), {"--json", "-"}));
    REQUIRE(ended.code == 0);
    const auto root = nlohmann::json::parse(ended.result);
    REQUIRE(root["rows"].size() == 3);
    std::string directions;
    for (const auto& row : root["rows"]) {
        directions += row["direction"].get<std::string>() + " ";
        for (const char* const key : {"bytes_per_s", "p50_us", "p99_us", "cpu_s_per_gb"})
            CHECK(row[key].get<double>() > 0);
        CHECK(row["block_bytes"] == 65536);
        CHECK(row["depth"] == 4);
        CHECK(row["backend"] != "auto");
        CHECK(row.contains("sustained_bytes_per_s") == (row["direction"] == "write"));
    }
    CHECK(directions == "write read mixed ");
    CHECK(root["verified_bytes"] == 8 << 20);
    CHECK(root["interrupted"] == false);
    CHECK(root["drives"][0]["folder"] == folder.path().string());
    CHECK_THAT(ended.human, Contains("GB/s") && Contains("sustained") && Contains("as written") &&
                                Contains("page cache"));
    CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("bench storage: lists are swept, and only what is asked for") {
    const testing::TemporaryFolder folder;
    const auto ended =
        bench(storage(folder.path(), {"--block", "4KiB,64KiB", "--depth", "1,2", "--only", "read",
                                      "--backend", "threads", "--json", "-"}));
    REQUIRE(ended.code == 0);
    const auto rows = nlohmann::json::parse(ended.result)["rows"];
    REQUIRE(rows.size() == 4);
    for (const auto& row : rows) {
        CHECK(row["direction"] == "read");
        CHECK(row["backend"] == "threads");
    }
}

TEST_CASE("bench storage: bad input is refused by name and leaves no file") {
    const testing::TemporaryFolder folder;
    const auto [more, said] = GENERATE(table<std::vector<std::string>, std::string>({
        {{"--backend", "uring"}, "\"uring\" is not one of auto, io_uring, libaio, threads"},
        {{"--only", "raed"}, "did you mean read"},
        {{"--depth", "many"}, "--depth: \"many\" is not a whole number"},
        {{"--depth", "0"}, "a depth of 0"},
        {{"--block", "1000"}, "1000 bytes is not a multiple of 4096"},
        {{"--block", "big"}, "--block"},
        {{"--size", "1000000GiB"}, "available: free space or ask for a smaller size"},
        {{"--time", "soon"}, "--time"},
        {{"--dir", "/absent/folder"}, "/absent/folder is no folder"},
        {{"--tune"}, "--tune finds the best --block itself"},
        {{"--profile", "profile.json"}, "--profile is written by --tune alone"},
    }));
    CHECK_THROWS_AS(bench(storage(folder.path(), more)), UsageError);
    CHECK_THROWS_WITH(bench(storage(folder.path(), more)), Contains(said));
    CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("bench: what is missing or unknown is refused by name") {
    CHECK_THROWS_WITH(bench({}), Contains("bench storage --dir"));
    CHECK_THROWS_WITH(bench({"storage"}), Contains("needs a folder"));
    CHECK_THROWS_WITH(bench({"storge"}), Contains("did you mean storage"));
    CHECK_THAT(bench({"--help"}).result, Contains("storage"));
    CHECK_THAT(bench({"storage", "--help"}).result, Contains("--block") && Contains("1MiB"));
}

TEST_CASE("bench storage: --tune keeps what is best for the folder's drive in the profile") {
    const testing::TemporaryFolder folder;
    const testing::TemporaryFolder home;
    const auto profile = home.path() / "profile.json";
    const std::vector<std::string> arguments{
        "storage", "--dir",     folder.path().string(), "--size", "32MiB", "--time", "3s",
        "--tune",  "--profile", profile.string(),       "--json", "-"};
    const auto ended = bench(arguments);
    REQUIRE(ended.code == 0);
    const auto root = nlohmann::json::parse(ended.result);
    REQUIRE(root["tuned"].size() == 1);
    const auto& tuned = root["tuned"][0];
    const auto stored = load_profiles(profile);
    REQUIRE(stored.drives.size() == 1);
    CHECK(stored.drives[0].file_system == file_system_identity(folder.path()));
    CHECK(tuned["backend"] == stored.drives[0].backend);
    CHECK(tuned["operation_bytes"] == stored.drives[0].operation_bytes);
    CHECK(tuned["depth"] == stored.drives[0].depth);
    CHECK(stored.drives[0].measured_unix_s > 0);
    CHECK_THAT(ended.human,
               Contains("best with " + stored.drives[0].backend) && Contains(profile.string()));
    CHECK(fs::is_empty(folder.path()));

    // A file of somebody else is refused before anything is measured.
    const auto foreign = home.path() / "notes.json";
    std::ofstream(foreign) << "mine";
    auto refused = arguments;
    refused[9] = foreign.string();
    CHECK_THROWS_WITH(bench(refused), Contains("notes.json is no profile"));
}

TEST_CASE("bench storage: an interrupt ends the program with 130 and no file is left") {
    const testing::TemporaryFolder folder;
    const std::string place = folder.path().string();
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        const int nowhere = ::open("/dev/null", O_RDWR);
        ::dup2(nowhere, STDOUT_FILENO);
        ::dup2(nowhere, STDERR_FILENO);
        ::execl(SPILLWAY_PROGRAM, "spillway", "bench", "storage", "--dir", place.c_str(), "--size",
                "64MiB", "--time", "60s", nullptr);
        ::_exit(127);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    const auto interrupted = std::chrono::steady_clock::now();
    ::kill(child, SIGINT);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(std::chrono::steady_clock::now() - interrupted < std::chrono::seconds(20));
    REQUIRE(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 130);
    CHECK(fs::is_empty(folder.path()));
}

}  // namespace spillway::engine
