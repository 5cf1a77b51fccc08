// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/console.h"

#include <fstream>
#include <sstream>
#include <system_error>

#include <catch2/catch.hpp>

#include "tests/support/temporary_folder.h"

using namespace spillway::engine;

namespace {

std::string read(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("console: human text and results go to streams of their own") {
    std::ostringstream human;
    std::ostringstream results;
    Console console(human, results, HumanStream::plain);
    console.line("one");
    console.warning("two");
    console.error("three");
    console.progress("never seen");
    console.write_json("{}", "-");
    CHECK(human.str() == "one\nwarning: two\nerror: three\n");
    CHECK(results.str() == "{}\n");
}

TEST_CASE("console: a progress line is redrawn, cut to the terminal, and makes room for a line") {
    std::ostringstream human;
    std::ostringstream results;
    Console console(human, results, HumanStream::terminal, 6);
    console.progress("step 1 of many");
    console.line("hello");
    console.clear_progress();
    CHECK(human.str() == "step \r\x1b[2Khello\n");
    CHECK(results.str().empty());
}

TEST_CASE("console: JSON for a file replaces it as a whole") {
    const spillway::testing::TemporaryFolder folder;
    std::ostringstream human;
    std::ostringstream results;
    Console console(human, results, HumanStream::plain);
    const auto path = folder.path() / "r.json";
    console.write_json(R"({"a":"a long value that a shorter one must not leave a tail of"})", path);
    console.write_json("{}", path);
    CHECK(read(path) == "{}\n");
    CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
    CHECK(results.str().empty());
    CHECK_THROWS_AS(console.write_json("{}", (folder.path() / "no" / "r.json").string()),
                    std::system_error);
    CHECK_THROWS_AS(console.write_json("{}", folder.path().string()), std::system_error);
}

TEST_CASE("console: a link stays one, and what it names is replaced") {
    const spillway::testing::TemporaryFolder folder;
    std::ostringstream human;
    Console console(human, human, HumanStream::plain);
    std::ofstream(folder.path() / "r.json") << "former";
    std::filesystem::create_symlink("r.json", folder.path() / "link");
    console.write_json("{}", (folder.path() / "link").string());
    CHECK(std::filesystem::is_symlink(folder.path() / "link"));
    CHECK(read(folder.path() / "r.json") == "{}\n");
    std::filesystem::create_symlink("new.json", folder.path() / "early");
    console.write_json("{}", (folder.path() / "early").string());
    CHECK(std::filesystem::is_symlink(folder.path() / "early"));
    CHECK(read(folder.path() / "new.json") == "{}\n");
}

TEST_CASE("console: a results stream that does not take the text is an error") {
    std::ostringstream human;
    std::ostringstream results;
    results.setstate(std::ios::badbit);
    Console console(human, results, HumanStream::plain);
    CHECK_THROWS_AS(console.write_json("{}", "-"), std::system_error);
}
