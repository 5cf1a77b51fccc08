// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <set>
#include <stdexcept>

#include <catch2/catch.hpp>

#include "offload/commit_table.h"

using spillway::offload::RunId;

TEST_CASE("a run identifier is printed as a UUID and read back", "[run_id]") {
    const std::string text = "0f8fad5b-d9cb-469f-a165-70867728950e";
    const auto run = RunId::parse(text);
    CHECK(run.bytes.front() == 0x0f);
    CHECK(run.bytes.back() == 0x0e);
    CHECK(run.text() == text);
}

TEST_CASE("random run identifiers differ and are of version 4", "[run_id]") {
    std::set<std::string> seen;
    for (int i = 0; i < 100; ++i) {
        const auto run = RunId::random();
        const auto text = run.text();
        CHECK(text[14] == '4');
        CHECK(std::string("89ab").find(text[19]) != std::string::npos);
        CHECK(RunId::parse(text) == run);
        seen.insert(text);
    }
    CHECK(seen.size() == 100);
}

TEST_CASE("what is no run identifier is refused and named", "[run_id]") {
    for (const std::string text :
         {"", "x", "0f8fad5b-d9cb-469f-a165-70867728950", "0f8fad5b-d9cb-469f-a165-70867728950e0",
          "0f8fad5bd-9cb-469f-a165-70867728950e", "0F8FAD5B-D9CB-469F-A165-70867728950E",
          "0f8fad5b-d9cb-469f-a165-7086772895 e", "../fad5b-d9cb-469f-a165-70867728950e"}) {
        CHECK_THROWS_AS(RunId::parse(text), std::invalid_argument);
        CHECK_THROWS_WITH(RunId::parse(text), Catch::Contains("'" + text + "'"));
    }
}
