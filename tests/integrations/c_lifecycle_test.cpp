// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/integrations/c_optimizer.h"
#include "tests/support/temporary_folder.h"

using Catch::Matchers::Contains;
using namespace spillway::testing;

namespace {

/// Inverts the first byte of every 4 KiB of the run's extents.
void damage_extents(const std::filesystem::path& folder) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
        if (entry.path().filename() != "extents.0")
            continue;
        std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
        for (std::uintmax_t at = 0; at < entry.file_size(); at += 4096) {
            file.seekg(static_cast<std::streamoff>(at));
            const int byte = file.get();
            file.seekp(static_cast<std::streamoff>(at));
            file.put(static_cast<char>(~byte));
        }
        return;
    }
    FAIL("there is no extents.0");
}

}  // namespace

TEST_CASE("calls in a wrong order are refused and change nothing") {
    COptimizerArguments arguments;
    COptimizer optimizer(arguments);
    auto* o = optimizer.get();
    const auto refuses = [&](spillway_status status) {
        CHECK(status == SPILLWAY_WRONG_ORDER);
        CHECK_FALSE(optimizer.error().empty());
    };
    const std::vector<float> gradient(c_bias, 1.0f);
    SECTION("a gradient given twice") {
        REQUIRE(optimizer.give(c_bias_tensor, gradient) == SPILLWAY_OK);
        refuses(optimizer.give(c_bias_tensor, gradient));
        CHECK_THAT(optimizer.error(), Contains("bias"));
    }
    SECTION("the end of a streamed step that was not begun") {
        refuses(spillway_end_gradients(o));
    }
    SECTION("a commit without a folder for it") {
        refuses(spillway_begin_commit(o, 1, nullptr, 0));
    }
    SECTION("a wait for a streamed step whose gradients still come") {
        REQUIRE(spillway_begin_streamed_step(o, 1.0) == SPILLWAY_OK);
        refuses(spillway_wait(o));
        CHECK_THAT(optimizer.error(), Contains("end_gradients"));
        REQUIRE(spillway_end_gradients(o) == SPILLWAY_OK);
    }
    SECTION("a streamed step begun twice") {
        REQUIRE(spillway_begin_streamed_step(o, 1.0) == SPILLWAY_OK);
        refuses(spillway_begin_streamed_step(o, 1.0));
        REQUIRE(spillway_end_gradients(o) == SPILLWAY_OK);
    }
    check_still_works(optimizer, arguments);
}

TEST_CASE("steps before the recovery of a commit that is there are refused") {
    const TemporaryFolder folder;
    COptimizerArguments arguments;
    arguments.commit_to(folder.path() / "run");
    {
        COptimizer optimizer(arguments);
        check_still_works(optimizer, arguments);
        REQUIRE(spillway_begin_commit(optimizer.get(), 1, nullptr, 0) == SPILLWAY_OK);
        REQUIRE(spillway_wait(optimizer.get()) == SPILLWAY_OK);
    }
    COptimizer again(arguments);
    CHECK(again.step() == SPILLWAY_WRONG_ORDER);
    CHECK_THAT(again.error(), Contains("recover") && Contains(folder.path().string()));
    CHECK(spillway_begin_streamed_step(again.get(), 1.0) == SPILLWAY_WRONG_ORDER);
    CHECK(spillway_begin_commit(again.get(), 1, nullptr, 0) == SPILLWAY_WRONG_ORDER);
    std::int32_t found = 0;
    std::uint64_t iteration = 0;
    REQUIRE(spillway_recover(again.get(), &found, &iteration) == SPILLWAY_OK);
    CHECK((found == 1 && iteration == 1));
    check_still_works(again, arguments);
}

TEST_CASE("a damaged commit is an integrity error, and nothing goes on from it") {
    const TemporaryFolder folder;
    COptimizerArguments arguments;
    arguments.commit_to(folder.path() / "run");
    {
        COptimizer optimizer(arguments);
        check_still_works(optimizer, arguments);
        REQUIRE(spillway_begin_commit(optimizer.get(), 1, nullptr, 0) == SPILLWAY_OK);
        REQUIRE(spillway_wait(optimizer.get()) == SPILLWAY_OK);
    }
    damage_extents(folder.path());
    COptimizer again(arguments);
    std::int32_t found = 77;
    std::uint64_t iteration = 77;
    CHECK(spillway_recover(again.get(), &found, &iteration) == SPILLWAY_INTEGRITY_ERROR);
    CHECK((found == 77 && iteration == 77));
    const auto first = again.error();
    CHECK_THAT(first, Contains("weight") && Contains("extents.0"));
    CHECK(again.step() != SPILLWAY_OK);
    CHECK(spillway_begin_commit(again.get(), 1, nullptr, 0) != SPILLWAY_OK);
    CHECK(spillway_recover(again.get(), &found, &iteration) == SPILLWAY_INTEGRITY_ERROR);
    CHECK(again.error() == first);
}

TEST_CASE("without a folder there is no commit to recover") {
    COptimizerArguments arguments;
    COptimizer optimizer(arguments);
    std::int32_t found = 77;
    std::uint64_t iteration = 77;
    CHECK(spillway_recover(optimizer.get(), &found, &iteration) == SPILLWAY_OK);
    CHECK((found == 0 && iteration == 77));
    check_still_works(optimizer, arguments);
}

TEST_CASE("two optimizers know nothing of each other") {
    COptimizerArguments first_arguments, second_arguments;
    COptimizer first(first_arguments), second(second_arguments);
    CHECK(spillway_wait_for(first.get(), 7) == SPILLWAY_INVALID_ARGUMENT);
    CHECK_THAT(first.error(), Contains("tensor is 7"));
    CHECK(second.error().empty());
    const std::vector<float> gradient(c_bias, 1.0f);
    REQUIRE(first.give(c_bias_tensor, gradient) == SPILLWAY_OK);
    REQUIRE(second.step() == SPILLWAY_OK);
    CHECK(first_arguments.bias == std::vector<float>(c_bias, 2.0f));
    REQUIRE(first.step() == SPILLWAY_OK);
    CHECK(first_arguments.bias == std::vector<float>(c_bias, 1.5f));
    CHECK(second_arguments.bias == std::vector<float>(c_bias, 2.0f));
}

TEST_CASE("a folder in use is refused to a second optimizer") {
    const TemporaryFolder folder;
    COptimizerArguments arguments;
    arguments.commit_to(folder.path() / "run");
    const COptimizer first(arguments);
    COptimizerArguments second_arguments;
    second_arguments.commit_to(folder.path() / "run");
    spillway_optimizer* second = nullptr;
    CHECK(second_arguments.create(&second) == SPILLWAY_FOLDER_REFUSED);
    CHECK(second == nullptr);
    CHECK_THAT(spillway_last_error(nullptr), Contains((folder.path() / "run").string()));
}

TEST_CASE("each thread reads the text of its own failure") {
    COptimizerArguments arguments;
    COptimizer optimizer(arguments);
    const float value = 1;
    const auto fail = [&](std::uint32_t tensor, std::string& text) {
        for (int round = 0; round < 200; ++round) {
            (void)spillway_give_gradient(optimizer.get(), tensor, &value, 1,
                                         SPILLWAY_GRADIENT_FP32);
            text = optimizer.error();
            if (text.find(std::to_string(tensor)) == std::string::npos)
                return;
        }
    };
    std::string first, second;
    {
        const std::jthread one([&] { fail(1001, first); });
        const std::jthread two([&] { fail(2002, second); });
    }
    CHECK_THAT(first, Contains("tensor is 1001"));
    CHECK_THAT(second, Contains("tensor is 2002"));
    CHECK(optimizer.error().empty());
}

TEST_CASE("a gradient that is not finite follows the rule") {
    COptimizerArguments arguments;
    COptimizer optimizer(arguments);
    std::vector<float> bad(c_bias, 1.0f);
    bad[3] = std::numeric_limits<float>::infinity();
    const std::vector<float> good(42, 1.0f);
    REQUIRE(optimizer.give(c_weight_tensor, good) == SPILLWAY_OK);
    REQUIRE(optimizer.give(c_bias_tensor, bad) == SPILLWAY_OK);
    auto rule = plain_rule();
    spillway_step_report report;
    spillway_step_report_init(&report, sizeof report);
    SECTION("stop") {
        rule.nonfinite = SPILLWAY_NONFINITE_STOP;
        CHECK(optimizer.step(&report, &rule) == SPILLWAY_NONFINITE_GRADIENT);
        CHECK_THAT(optimizer.error(), Contains("bias"));
    }
    SECTION("skip") {
        rule.nonfinite = SPILLWAY_NONFINITE_SKIP;
        CHECK(optimizer.step(&report, &rule) == SPILLWAY_OK);
        CHECK(report.applied == 0);
        CHECK(report.nonfinite == 1);
        CHECK(report.nonfinite_tensor == std::string("bias"));
    }
    CHECK(arguments.weight == std::vector<float>(42, 1.0f));
    CHECK(arguments.bias == std::vector<float>(c_bias, 2.0f));
    check_still_works(optimizer, arguments);
}
