// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors

// The built program as its user meets it: what it is told wrongly, it refuses with exit code 2,
// says what is wrong, and leaves nothing on the disk.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

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
    /// What `more` names is not named before it.
    [[nodiscard]] std::string train(const std::string& more) const {
        std::string line = "train --probe off --eval-sequences 2";
        for (const auto& [option, value] : std::vector<std::pair<std::string, std::string>>{
                 {"--model", "gpt2:1x32x1"},
                 {"--context", "32"},
                 {"--batch", "2"},
                 {"--threads", "1"},
                 {"--data", (path() / "text.txt").string()},
                 {"--out", out().string()}})
            if (more.find(option + " ") == std::string::npos)
                line.append(" ").append(option).append(" ").append(value);
        return line + " " + more;
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
        {"--steps 1 --trace /nowhere/t.json", "--trace: /nowhere/t.json cannot be written"},
        {"--steps 1 --trace ./t.json --json t.json", "are one file; name two"},
        {"--steps 1 --device cuda:1023", "cuda:1023"},
        {"--steps 1 --device sim:1KiB", "sim:1KiB"},
        {"--steps 1 --state int4", "did you mean int8?"},
        {"--steps 1 --seq 33", "--seq 33"},
        {"--steps 1 --nvme /nowhere", "--nvme /nowhere"},
        {"--steps 1 --host-mem 1MiB", "bytes are needed"},
        {"--steps 1 --device sim:64KiB", "device memory"},
        {"--steps 1 --config /nowhere.json", "/nowhere.json"},
        {"--steps 1 --warmup 5", "--warmup 5"},
        {"--replay-progress /nowhere.jsonl", "/nowhere.jsonl"},
        {"--steps 1 --batch 4294967295", "--batch is 4294967295; the most is"},
        {"--steps 1 --micro-batches 4294967295", "--micro-batches 4294967295"},
        {"--steps 1 --model gpt2:4294967295x64x2", "4294967295 layers"},
        {"--steps 1 --model gpt2:99999999999x64x2", "too large"},
        {"--steps 1 --threads 2048", "--threads is 2048; the most is"},
        {"--steps 1 --host-mem 99999999999TiB", "is too large a size"},
        {"--steps 1 --lr 1e31", "from 0 to 1e30"},
        {"--budget 0s", "must be above 0"},
        {"--budget 99999999999999d", "the most is 100 years"},
        {"--steps 1 --device sim:64MiB@1B/s", "moves 1 bytes/s"},
        {"--steps 1 --json /nowhere/r.json", "--json: /nowhere/r.json cannot be written"},
        {"--steps 1 --json /tmp", "it is a folder"},
        {"--steps 1 --profile /dev/null", "is no profile of this program"},
        {"--steps 1 --profile /dev/zero", "is a device"},
        {"--steps 1 --profile /tmp", "is a folder"},
        {"--steps 1 --profile /nowhere/p.json", "/nowhere is not there"},
        {"--steps 1 --config /dev/zero", "is a device"},
        {"--steps 1 --config /tmp", "is a folder"},
        {"--steps 1 --out " + std::string(300, 'x'), "has 300 bytes; at most 255"},
        {"--steps 1 --out /dev/null/run", "/dev/null is no folder"},
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

TEST_CASE("cli_bad_input: pipes and damaged files are refused at once, and left as they are") {
    const Workplace place;
    const auto fifo = (place.path() / "fifo").string();
    REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
    const auto thesis = (place.path() / "thesis.txt").string();
    std::ofstream(thesis) << "{\"years\": of work}";
    for (const auto& [more, said] : std::vector<std::pair<std::string, std::string>>{
             {"--profile " + fifo, "is a pipe"},
             {"--config " + fifo, "is a pipe"},
             {"--profile " + thesis, thesis + " is no profile of this program: name another file"},
             {"--config " + thesis, "is not JSON: line 1, column 11"}}) {
        const auto ended = run(place.train("--steps 1 " + more));
        INFO(more << "\n" << ended.output);
        CHECK(ended.code == 2);
        CHECK_THAT(ended.output, Contains(said) && !Contains("json.exception"));
        CHECK_FALSE(fs::exists(place.out()));
    }
    CHECK(fs::file_size(thesis) == 18);
    std::ofstream(place.path() / "deep.json") << std::string(100'000, '[');
    CHECK(run(place.train("--steps 1 --config " + (place.path() / "deep.json").string())).code ==
          2);
}

TEST_CASE("cli_bad_input: every verb looks at --json before it works") {
    const Workplace place;
    for (const std::string verb :
         {"plan --model gpt2:1x32x1", "generate nowhere", "inspect nowhere", "export nowhere new",
          "info", "clean .", "bench adam", "bench storage --dir ."}) {
        const auto ended = run(verb + " --json /nowhere/r.json");
        INFO(verb << "\n" << ended.output);
        CHECK(ended.code == 2);
        CHECK(ended.output ==
              "error: --json: /nowhere/r.json cannot be written: /nowhere is not there; make it "
              "first\n");
    }
    // A run's own folder is there by then.
    const auto summary = (place.out() / "r.json").string();
    CHECK(run(place.train("--steps 1 --json " + summary)).code == 0);
    CHECK(fs::exists(summary));
}

TEST_CASE("cli_bad_input: threads beyond what products take are refused by every verb") {
    for (const std::string verb :
         {"plan --model gpt2:1x32x1", "generate nowhere", "bench adam --elements 1000"}) {
        const auto ended = run(verb + " --threads 4097");
        CHECK(ended.code == 2);
        CHECK_THAT(ended.output, Contains("--threads is 4097"));
    }
}

TEST_CASE("cli_bad_input: a run goes on without a reader, results without one are an error") {
    const Workplace place;
    const auto program = std::string(SPILLWAY_PROGRAM " ");
    const auto shell = [](const std::string& command) {
        const int status = std::system(("bash -c '" + command + "'").c_str());
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    };
    const auto steps = place.train("--steps 3 --json " + (place.path() / "r.json").string());
    CHECK(shell(program + steps + " 2>&- >&- <&-") == 0);
    CHECK(shell(program + "inspect " + place.out().string() + " 2>/dev/null") == 0);
    fs::remove_all(place.out());
    CHECK(shell("set -o pipefail; " + program + steps + " 2>&1 | true") == 0);
    CHECK(fs::exists(place.path() / "r.json"));
    for (const std::string into : {">/dev/full", ">&-", "| true; exit ${PIPESTATUS[0]}"})
        CHECK(shell(program + "info --json - 2>/dev/null " + into) == 1);
    // A file that may not grow: an error of that file, no end by signal.
    const auto text = (place.path() / "big.json").string();
    CHECK(shell("ulimit -f 0; " + program + "info --json " + text + " 2>/dev/null") == 1);
}

TEST_CASE("cli_bad_input: names that are no UTF-8, folders that are gone or locked") {
    const Workplace place;
    const auto out = place.path() / "caf\xe9";
    const auto ended = run(place.train("--steps 1 --json - --out " + out.string()));
    INFO(ended.output);
    CHECK(ended.code == 0);
    const auto copy = place.path() / "copi\xe9";
    CHECK(run("export " + out.string() + " " + copy.string() + " --json -").code == 0);
    if (::geteuid() != 0) {  // root may write anywhere
        fs::create_directory(place.path() / "locked");
        fs::permissions(place.path() / "locked", fs::perms::owner_read | fs::perms::owner_exec);
        const auto locked =
            run(place.train("--steps 1 --out " + (place.path() / "locked/o").string()));
        CHECK(locked.code == 2);
        CHECK_THAT(locked.output, Contains("--out") && Contains("cannot be written"));
    }
    const auto gone = (place.path() / "gone").string();
    const auto command = "mkdir " + gone + "; cd " + gone + "; rmdir " + gone + "; ";
    const int status = std::system(
        (command + SPILLWAY_PROGRAM " " + place.train("--steps 1 --out o") + " 2>/dev/null")
            .c_str());
    CHECK(WEXITSTATUS(status) == 2);
}
