// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/nearest.h"

#include <vector>

#include <catch2/catch.hpp>

using namespace spillway::engine;

TEST_CASE("nearest: edit distance counts insertions, removals, replacements and swaps") {
    CHECK(edit_distance("", "") == 0);
    CHECK(edit_distance("abc", "") == 3);
    CHECK(edit_distance("steps", "stpes") == 1);
    CHECK(edit_distance("step", "steps") == 1);
    CHECK(edit_distance("kitten", "sitting") == 3);
    CHECK(edit_distance("ca", "abc") == 3);  // optimal string alignment: no part is edited twice
}

TEST_CASE("nearest: the nearest of candidates is suggested unless it is too far away") {
    const std::vector<std::string> names{"seed", "seq", "steps"};
    CHECK(nearest("sed", names) == "seed");
    CHECK(nearest("sqe", names) == "seq");
    CHECK(nearest("device", names).empty());
    CHECK(nearest("x", std::vector<std::string>{}).empty());
    CHECK(suggestion("stesp", names, "--") == "; did you mean --steps?");
    CHECK(suggestion("zzz", names, "--").empty());
}
