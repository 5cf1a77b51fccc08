// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#define CATCH_CONFIG_RUNNER
#include <iostream>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/support/skip.h"

namespace {

constexpr int skip_exit_code = 77;

std::vector<std::string>& skip_reasons() {
    static std::vector<std::string> reasons;
    return reasons;
}

}  // namespace

void spillway::testing::skip(const std::string& reason) {
    skip_reasons().push_back(reason);
}

int main(int argc, char** argv) {
    const int failed = Catch::Session().run(argc, argv);
    for (const auto& reason : skip_reasons())
        std::cout << "SKIPPED: " << reason << '\n';
    if (failed != 0)
        return failed;
    return skip_reasons().empty() ? 0 : skip_exit_code;
}
