// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors

// The built program as its user meets it: what it is told wrongly, it refuses with exit code 2,
// says what is wrong, and leaves nothing on the disk.
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include "tests/support/temporary_folder.h"

using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

struct Ended {
    int code = -1;
    std::string output;  ///< both streams
};

Ended run(const std::string& arguments) {
    const std::string command = SPILLWAY_PROGRAM " " + arguments + " 2>&1 < /dev/null";
    auto* const pipe = ::popen(command.c_str(), "r");
    if (pipe == nullptr)
        throw std::runtime_error("popen " + command);
    Ended ended;
    std::array<char, 4096> part{};
    while (const auto bytes = std::fread(part.data(), 1, part.size(), pipe))
        ended.output.append(part.data(), bytes);
    const int status = ::pclose(pipe);
    ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return ended;
}

/// A folder with a text to learn, and the flags of a small run into OUT below it.
class Workplace {
  public:
    Workplace() {
        std::ofstream text(path() / "text.txt");
        for (int i = 0; i < 4000; ++i)
            text << "line " << i << '\n';
    }
    [[nodiscard]] const fs::path& path() const { return folder_.path(); }
    [[nodiscard]] fs::path out() const { return path() / "out"; }
    [[nodiscard]] std::string train(const std::string& more) const {
        return "train --model gpt2:1x32x1 --context 32 --batch 2 --probe off --threads 1 "
               "--eval-sequences 2 --data " +
               (path() / "text.txt").string() + " --out " + out().string() + " " + more;
    }

  private:
    spillway::testing::TemporaryFolder folder_;
};

}  // namespace

TEST_CASE("cli_bad_input: the program refuses what it cannot do and says why") {
    const Workplace place;
    const auto [more, said] = GENERATE(table<std::string, std::string>({
        {"", "--steps N or --budget TIME is needed"},
        {"--steps 1 --budget 5s", "exclude each other"},
        {"--steps 1 --stpes 2", "did you mean --steps?"},
        {"--steps 1 --trace t.json", "--trace is not available in this version"},
        {"--steps 1 --device cuda:0", "cuda:0"},
        {"--steps 1 --device sim:1KiB", "sim:1KiB"},
        {"--steps 1 --state int8", "int8 is not available in this version"},
        {"--steps 1 --seq 33", "--seq 33"},
        {"--steps 1 --nvme /nowhere", "--nvme /nowhere"},
        {"--steps 1 --host-mem 1MiB", "bytes are needed"},
        {"--steps 1 --device sim:64KiB", "device memory"},
        {"--steps 1 --config /nowhere.json", "/nowhere.json"},
        {"--steps 1 --warmup 5", "--warmup 5"},
        {"--replay-progress /nowhere.jsonl", "/nowhere.jsonl"},
    }));
    const auto ended = run(place.train(more));
    INFO(more << "\n" << ended.output);
    CHECK(ended.code == 2);
    CHECK_THAT(ended.output, Contains(said));
    CHECK_FALSE(fs::exists(place.out()));
}

TEST_CASE("cli_bad_input: several mistakes are reported at once") {
    const auto ended = run("train --batch 0 --lr -1 --vocab 3");
    CHECK(ended.code == 2);
    for (const auto* said :
         {"--model", "--data", "--out", "--steps", "--batch is 0", "--lr is -1", "--vocab is 3"})
        CHECK_THAT(ended.output, Contains(said));
}

TEST_CASE("cli_bad_input: data that are missing, empty or too short are refused") {
    const Workplace place;
    const auto with = [&](const std::string& file) {
        return run("train --model gpt2:1x32x1 --context 32 --steps 1 --probe off --data " + file +
                   " --out " + place.out().string());
    };
    std::ofstream(place.path() / "empty.txt").close();
    std::ofstream(place.path() / "short.txt") << "hello";
    for (const auto* name : {"none.txt", "empty.txt", "short.txt", "."}) {
        const auto ended = with((place.path() / name).string());
        INFO(name << "\n" << ended.output);
        CHECK(ended.code == 2);
        CHECK_THAT(ended.output, Contains("--data"));
        CHECK_FALSE(fs::exists(place.out()));
    }
}

TEST_CASE("cli_bad_input: a folder that is not empty is left as it was") {
    const Workplace place;
    fs::create_directory(place.out());
    std::ofstream(place.out() / "thesis.txt") << "years of work";
    const auto ended = run(place.train("--steps 1"));
    CHECK(ended.code == 2);
    CHECK_THAT(ended.output, Contains("--resume"));
    CHECK(std::distance(fs::directory_iterator(place.out()), {}) == 1);
    CHECK(run(place.train("--steps 1 --out " + (place.out() / "thesis.txt").string())).code == 2);
}

TEST_CASE(
    "cli_bad_input: a resume that changes the run is refused by name, one that lengthens it goes "
    "on") {
    const Workplace place;
    const auto json = (place.path() / "r.json").string();
    REQUIRE(run(place.train("--steps 2")).code == 0);
    const auto changed = run(place.train("--resume --seed 7 --lr 0.5 --steps 3"));
    CHECK(changed.code == 2);
    CHECK_THAT(changed.output, Contains("--seed 7") && Contains("--lr 0.5"));
    CHECK(run(place.train("--resume --budget 5s")).code == 2);
    const auto longer = run(place.train("--resume --steps 3 --json " + json));
    INFO(longer.output);
    REQUIRE(longer.code == 0);
    CHECK_THAT(longer.output, Contains("ends at update 2 with a learning rate of 0"));
    std::ifstream file(json);
    const auto result = nlohmann::json::parse(file);
    CHECK(result.at("steps") == 3);
    CHECK(result.at("resumed_from_step") == 2);
    CHECK(result.at("attained").is_null());
    CHECK(result.at("settings").at("schedule_steps") == 2);
}

TEST_CASE("cli_bad_input: help and defaults are on standard output, unknown verbs are errors") {
    const auto help = run("train --help 2>/dev/null");
    CHECK(help.code == 0);
    CHECK_THAT(help.output, Contains("--host-mem BYTES") && Contains("(default: 0.0003)"));
    CHECK(run("tarin").code == 2);
    CHECK(run("").code == 2);
    CHECK(run("bench").code == 2);
}
