// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/loss_scale.h"

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/cpu_optim/torch_inputs.h"
#include "tests/cpu_optim/torch_transcripts.h"

namespace spillway::cpu_optim {
namespace {

/// The rules that tests/python/torch_transcripts.py gives to GradScaler.
constexpr LossScaleRules torch_rules{.growth_interval = 3};

std::vector<float> scales_of(LossScale& scale, const std::vector<bool>& overflows) {
    std::vector<float> scales;
    for (const bool overflow : overflows) {
        const StepVerdict verdict = scale.update(overflow ? 1 : 0);
        CHECK(verdict == (overflow ? StepVerdict::skip : StepVerdict::apply));
        scales.push_back(scale.scale());
    }
    return scales;
}

std::string refusal(const LossScaleRules& rules) {
    try {
        check(rules);
    } catch (const std::invalid_argument& error) {
        return error.what();
    }
    return "accepted";
}

}  // namespace

TEST_CASE("a loss scale goes step by step where torch's GradScaler goes") {
    LossScale scale(torch_rules);
    std::uint64_t overflows = 0;
    std::uint64_t growths = 0;
    for (std::uint64_t n = 0; n < testing::transcript_steps; ++n) {
        CAPTURE(n);
        const float before = scale.scale();
        const bool overflow = testing::transcript_overflow(n);
        const StepVerdict verdict = scale.update(overflow ? 5 : 0);
        REQUIRE(verdict == (overflow ? StepVerdict::skip : StepVerdict::apply));
        REQUIRE(scale.scale() == testing::transcript::scaler[n].scale);
        REQUIRE(scale.state().growth_tracker == testing::transcript::scaler[n].growth_tracker);
        overflows += overflow ? 1u : 0u;
        growths += scale.scale() > before ? 1u : 0u;
        REQUIRE(scale.state().skipped == overflows);
    }
    CHECK((overflows > 10 && growths > 10));
}

TEST_CASE("a transcript with another rule is not followed") {
    for (const LossScaleRules& rules :
         {LossScaleRules{.growth_interval = 4},
          LossScaleRules{.growth_interval = 3, .hysteresis = 2},
          LossScaleRules{.backoff_factor = 0.25, .growth_interval = 3}}) {
        LossScale scale(rules);
        std::size_t different = 0;
        for (std::uint64_t n = 0; n < testing::transcript_steps; ++n) {
            scale.update(testing::transcript_overflow(n) ? 1 : 0);
            different += scale.scale() != testing::transcript::scaler[n].scale ? 1u : 0u;
        }
        CHECK(different > 0);
    }
}

TEST_CASE("a scale saved and restored at any step goes on as if it had not been") {
    constexpr LossScaleRules rules{
        .growth_factor = 1.7, .backoff_factor = 0.3, .growth_interval = 4, .hysteresis = 3};
    LossScale kept(rules);
    for (std::uint64_t n = 0; n < testing::transcript_steps; ++n) {
        LossScale restored(rules, kept.state());
        const std::uint64_t nonfinite = testing::transcript_overflow(n) ? 2 : 0;
        CHECK(kept.update(nonfinite) == restored.update(nonfinite));
        REQUIRE(kept.state() == restored.state());
    }
}

TEST_CASE("with hysteresis the first overflows skip the step and leave the scale") {
    LossScale scale(LossScaleRules{.initial_scale = 64, .growth_interval = 2, .hysteresis = 3});
    CHECK(scales_of(scale, {true, true, true, true}) == std::vector<float>{64, 64, 32, 16});
    CHECK(scale.state().hysteresis_left == 1);
    // Growth fills it up again.
    CHECK(scales_of(scale, {false, false, true, true, true}) ==
          std::vector<float>{16, 32, 32, 32, 16});
}

TEST_CASE("a scale stays within its bounds") {
    LossScale scale(LossScaleRules{
        .initial_scale = 4, .growth_interval = 1, .least_scale = 1.5, .most_scale = 12});
    CHECK(scales_of(scale, {true, true, true, false, false, false, false, false}) ==
          std::vector<float>{2, 1.5, 1.5, 3, 6, 12, 12, 12});
    LossScale large(LossScaleRules{.initial_scale = 0x1p126, .growth_interval = 1});
    CHECK(scales_of(large, {false, false, false}) == std::vector<float>(3, 0x1p127F));
}

TEST_CASE("skips are counted, in a row and altogether") {
    LossScale scale(LossScaleRules{});
    for (int n = 0; n < 10; ++n)
        scale.update(1);
    CHECK(scale.state().skipped_in_row == 10);
    CHECK(scale.scale() == 64);
    scale.update(0);
    scale.update(3);
    CHECK((scale.state().skipped_in_row == 1 && scale.state().skipped == 11));
}

TEST_CASE("gradients are multiplied by the reciprocal of the scale, rounded once") {
    CHECK(LossScale(LossScaleRules{}).gradient_scale() == 0x1p-16F);
    CHECK(LossScale(LossScaleRules{.initial_scale = 3}).gradient_scale() ==
          static_cast<float>(1.0 / 3));
}

TEST_CASE("loss scale rules out of range are refused with name, value and range") {
    CHECK(refusal({}) == "accepted");
    CHECK(refusal({.growth_factor = 1}) ==
          "loss scale: growth_factor is 1 and must be a finite number above 1");
    CHECK(refusal({.backoff_factor = 1}) ==
          "loss scale: backoff_factor is 1 and must be above 0 and below 1");
    CHECK(refusal({.initial_scale = 0}).starts_with("loss scale: initial_scale is 0"));
    CHECK(refusal({.initial_scale = std::nan("")}).starts_with("loss scale: initial_scale"));
    CHECK(refusal({.growth_interval = 0}).starts_with("loss scale: growth_interval"));
    CHECK(refusal({.hysteresis = 0}).starts_with("loss scale: hysteresis"));
    CHECK(refusal({.least_scale = -1}).starts_with("loss scale: least_scale"));
    CHECK(refusal({.most_scale = 1}).starts_with("loss scale: initial_scale"));
    CHECK(refusal({.most_scale = std::numeric_limits<double>::infinity()})
              .starts_with("loss scale: most_scale"));
}

TEST_CASE("a saved state that no scale under the rules has is refused") {
    const LossScaleRules rules{.growth_interval = 3, .hysteresis = 2, .least_scale = 1};
    const LossScaleState good{
        .scale = 8, .growth_tracker = 2, .hysteresis_left = 1, .skipped_in_row = 1, .skipped = 4};
    CHECK(LossScale(rules, good).state() == good);
    const auto refused = [&](auto change) {
        LossScaleState bad = good;
        change(bad);
        CHECK_THROWS_AS(LossScale(rules, bad), std::invalid_argument);
    };
    refused([](auto& state) { state.scale = 0.5F; });
    refused([](auto& state) { state.scale = std::nanf(""); });
    refused([](auto& state) { state.growth_tracker = 3; });
    refused([](auto& state) { state.hysteresis_left = 0; });
    refused([](auto& state) { state.hysteresis_left = 3; });
    refused([](auto& state) { state.skipped_in_row = 5; });
}

}  // namespace spillway::cpu_optim
