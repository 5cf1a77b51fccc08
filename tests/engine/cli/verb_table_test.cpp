// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/verb_table.h"

#include <array>
#include <sstream>
#include <stdexcept>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/cli/usage_error.h"
#include "offload/plan.h"
#include "offload/state_folder.h"

using namespace spillway::engine;
using Catch::Matchers::Contains;

namespace {

int run_fine(std::span<const std::string> arguments, Console& console) {
    console.result("ran with " + std::to_string(arguments.size()) + "\n");
    return 130;
}
int run_badly(std::span<const std::string> arguments, Console&) {
    if (arguments.front() == "usage")
        throw UsageError(std::vector<std::string>{"one", "two"});
    if (arguments.front() == "plan")
        throw spillway::offload::PlanRefused("host memory", 10, 5, "add some");
    if (arguments.front() == "folder")
        throw spillway::offload::FolderRefused("locked");
    throw std::runtime_error("disk on fire");
}

struct Run {
    int code;
    std::string human;
    std::string results;
};

Run run(const std::vector<std::string>& arguments) {
    const std::array verbs{Verb{"train", "trains", run_fine}, Verb{"info", "shows", run_badly}};
    std::ostringstream human;
    std::ostringstream results;
    Console console(human, results, HumanStream::plain);
    const int code = run_program(verbs, arguments, console);
    return {code, human.str(), results.str()};
}

}  // namespace

TEST_CASE("verb_table: the verb gets the arguments behind it and its code is the program's") {
    const auto done = run({"train", "--a", "b"});
    CHECK(done.code == 130);
    CHECK(done.results == "ran with 2\n");
}

TEST_CASE("verb_table: what a verb throws becomes a code and a text that says all") {
    CHECK(run({"info", "usage"}).code == 2);
    CHECK(run({"info", "usage"}).human == "error: one\nerror: two\n");
    CHECK(run({"info", "plan"}).code == 2);
    CHECK_THAT(run({"info", "plan"}).human, Contains("10") && Contains("5"));
    CHECK(run({"info", "folder"}).code == 2);
    CHECK(run({"info", "other"}).code == 1);
    CHECK_THAT(run({"info", "other"}).human, Contains("disk on fire"));
}

TEST_CASE("verb_table: verbs that are unknown, missing or to come are refused") {
    CHECK(run({}).code == 2);
    CHECK(run({"trian"}).code == 2);
    CHECK_THAT(run({"trian"}).human, Contains("did you mean train?"));
}

TEST_CASE("verb_table: help and version go to the results") {
    const auto help = run({"--help"});
    CHECK(help.code == 0);
    CHECK(help.human.empty());
    CHECK_THAT(help.results, Contains("train") && Contains("trains") && Contains("130"));
    CHECK_THAT(run({"--version"}).results, Contains("spillway "));
}
