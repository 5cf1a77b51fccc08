// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/option_set.h"

#include <fstream>

#include <catch2/catch.hpp>

#include "tests/support/temporary_folder.h"

using namespace spillway::engine;
using Catch::Matchers::Contains;

namespace {

struct Bound {
    std::filesystem::path folder;
    std::string model;
    std::string json;
    std::uint64_t steps = 5;
    std::uint64_t host_mem = 0;
    double lr = 3e-4;
    bool resume = false;
    std::vector<std::string> data;
    std::string schedule = "cosine";
    OptionSet options{"train", "Trains a model."};

    Bound() {
        options.add_positional({"folder", "DIR", "the folder"}, folder);
        options.add({"model", "NAME", "the model"}, model);
        options.add({"json", "FILE|-", "where the result goes"}, json);
        options.add({"steps", "N", "steps in all"}, steps);
        options.add_bytes({"host-mem", "BYTES", "host memory", "free memory"}, host_mem);
        options.add({"lr", "X", "learning rate"}, lr);
        options.add({"resume", "", "go on"}, resume);
        options.add({"data", "FILE...", "files"}, data);
        options.add_choice({"schedule", "", "schedule"}, {"constant", "cosine"}, schedule);
        options.refuse("trace");
    }
    Bound(const Bound&) = delete;  // the options point at the variables
    Bound& operator=(const Bound&) = delete;

    OptionSet::Outcome parse(std::vector<std::string> arguments) {
        return options.parse(arguments);
    }
    std::vector<std::string> problems(std::vector<std::string> arguments) {
        try {
            static_cast<void>(options.parse(arguments));
        } catch (const UsageError& error) {
            return error.problems();
        }
        return {};
    }
};

std::string config(const spillway::testing::TemporaryFolder& folder, const std::string& text) {
    const auto path = folder.path() / "c.json";
    std::ofstream(path) << text;
    return path.string();
}

}  // namespace

TEST_CASE("option_set: flags set what they name and leave the rest at its default") {
    Bound b;
    CHECK(b.parse({"--json", "-", "--lr", "-1", "/tmp/x", "--host-mem=8GiB", "--resume"}) ==
          OptionSet::Outcome::run);
    CHECK(b.json == "-");
    CHECK(b.lr == -1);
    CHECK(b.folder == "/tmp/x");
    CHECK(b.host_mem == std::uint64_t{8} << 30);
    CHECK(b.resume);
    CHECK(b.steps == 5);
    CHECK(b.options.source("lr") == ValueSource::flag);
    CHECK_FALSE(b.options.given("steps"));
}

TEST_CASE("option_set: lists take blanks, commas and repetition alike") {
    Bound b;
    static_cast<void>(b.parse({"--data", "a", "b,c", "--data", "d", "--steps", "2"}));
    CHECK(b.data == std::vector<std::string>{"a", "b", "c", "d"});
    CHECK(b.steps == 2);
}

TEST_CASE("option_set: every problem of the flags is reported at once, with the nearest name") {
    Bound b;
    const auto found = b.problems({"--modle", "x", "--stesp=5", "--trace", "f", "--lr", "abc",
                                   "--host-mem", "5x", "--schedule", "cosin"});
    REQUIRE(found.size() == 6);
    CHECK(found[0] == "--modle is not an option of train; did you mean --model?");
    CHECK(found[1] == "--stesp is not an option of train; did you mean --steps?");
    CHECK(found[2] == "--trace is not available in this version");
    CHECK_THAT(found[3], Contains("5x") && Contains("--host-mem"));
    CHECK(found[4] == "--lr: \"abc\" is no finite number");
    CHECK_THAT(found[5], Contains("did you mean cosine?"));
}

TEST_CASE("option_set: a name that nothing resembles gets no suggestion") {
    Bound b;
    CHECK(b.problems({"--zzzzzzzzz"}) ==
          std::vector<std::string>{"--zzzzzzzzz is not an option of train"});
}

TEST_CASE("option_set: values that are missing, repeated or no values are errors") {
    const auto [arguments, said] = GENERATE(table<std::vector<std::string>, std::string>({
        {{"--lr"}, "--lr"},
        {{"--lr", "--resume"}, "--lr needs a value"},
        {{"--lr", "1", "--lr", "2"}, "--lr is given 2 times (1, 2)"},
        {{"--lr", "nan"}, "no finite number"},
        {{"--steps", "-1"}, "no whole number"},
        {{"--steps", "18446744073709551616"}, "is too large"},
        {{"--data", "a,,b"}, "empty item"},
        {{"/tmp/x", "more"}, "\"more\" belongs to no option"},
        {{"-x"}, "-x is not an option"},
    }));
    Bound b;
    const auto found = b.problems(arguments);
    REQUIRE_FALSE(found.empty());
    CHECK_THAT(found.front(), Contains(said));
}

TEST_CASE("option_set: flags override the file and the file overrides defaults") {
    const spillway::testing::TemporaryFolder folder;
    Bound b;
    const auto path = config(folder, R"({"host_mem": "8GiB", "steps": 7, "lr": 1e-3,
                                         "data": ["a", "b"], "resume": true, "model": null})");
    static_cast<void>(b.parse({"--config", path, "--steps", "9"}));
    CHECK(b.steps == 9);
    CHECK(b.lr == 1e-3);
    CHECK(b.host_mem == std::uint64_t{8} << 30);
    CHECK(b.data == std::vector<std::string>{"a", "b"});
    CHECK(b.resume);
    CHECK(b.options.source("lr") == ValueSource::file);
    CHECK(b.options.source("steps") == ValueSource::flag);
    CHECK_FALSE(b.options.given("model"));
}

TEST_CASE("option_set: what a file holds wrongly is named") {
    const spillway::testing::TemporaryFolder folder;
    const auto [text, said] = GENERATE(table<std::string, std::string>({
        {R"({"setps": 1})", "\"setps\" is not an option of train; did you mean --steps?"},
        {R"({"trace": 1})", "not available in this version"},
        {R"({"steps": 1, "steps": 2})", "\"steps\" stands there twice"},
        {R"({"host-mem": 1, "host_mem": 1})", "are one option"},
        {R"({"lr": {"peak": 1}})", "\"lr\" holds {\"peak\":1}"},
        {R"({"steps": 1.5})", "(in the --config file)"},
        {R"([1])", "holds a JSON array"},
        {R"({"steps": )", "is not JSON"},
    }));
    Bound b;
    const auto found = b.problems({"--config", config(folder, text)});
    REQUIRE(found.size() == 1);
    CHECK_THAT(found.front(), Contains(said));
}

TEST_CASE("option_set: a configuration file that is missing or a folder is an error") {
    const spillway::testing::TemporaryFolder folder;
    Bound b;
    CHECK_THAT(b.problems({"--config", "/nowhere.json"}).at(0), Contains("/nowhere.json"));
    CHECK_THAT(b.problems({"--config", folder.path().string()}).at(0), Contains("is a folder"));
}

TEST_CASE("option_set: help shows every option with its default and wins over errors") {
    Bound b;
    CHECK(b.parse({"--help", "--steps", "x"}) == OptionSet::Outcome::help_wanted);
    const auto text = b.options.help();
    CHECK_THAT(text, Contains("--steps N") && Contains("(default: 5)") &&
                         Contains("(default: 0.0003)") && Contains("(default: free memory)") &&
                         Contains("(default: off)") && Contains("constant|cosine") &&
                         Contains("--config FILE.json"));
    for (std::size_t at = 0; at < text.size();) {
        const auto end = text.find('\n', at);
        CHECK(end - at <= 100);
        at = end + 1;
    }
}
