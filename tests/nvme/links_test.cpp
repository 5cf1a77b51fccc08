// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/links.h"

#include <catch2/catch.hpp>

#include "tests/support/temporary_folder.h"

using Catch::Matchers::Contains;
using spillway::nvme::behind_links;
namespace fs = std::filesystem;

TEST_CASE("links: behind them is what they name, whether it is there or not") {
    const spillway::testing::TemporaryFolder folder;
    const auto& at = folder.path();
    fs::create_directory(at / "far");
    fs::create_symlink("far/second", at / "first");
    fs::create_symlink("../not there", at / "far" / "second");
    fs::create_symlink(at / "plain", at / "whole");
    fs::create_symlink("round", at / "round");
    CHECK(behind_links(at / "first") == at / "far" / ".." / "not there");
    CHECK(behind_links(at / "whole") == at / "plain");
    CHECK(behind_links("plain") == fs::current_path() / "plain");
    CHECK_THROWS_WITH(behind_links(at / "round"), Contains((at / "round").string()));
}
