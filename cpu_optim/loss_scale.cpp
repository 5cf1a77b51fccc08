// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/loss_scale.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string_view>

#include <fmt/format.h>

namespace spillway::cpu_optim {
namespace {

[[noreturn]] void refuse(std::string_view field, double value, std::string_view needed) {
    throw std::invalid_argument(fmt::format("loss scale: {} is {} and {}", field, value, needed));
}

const LossScaleRules& checked(const LossScaleRules& rules) {
    check(rules);
    return rules;
}

/// Bounds that are floats, so that a scale can be at them.
float bounded(const LossScaleRules& rules, double scale) {
    return static_cast<float>(std::clamp(scale, rules.least_scale, rules.most_scale));
}

}  // namespace

void check(const LossScaleRules& rules) {
    if (!(rules.least_scale >= 0 && rules.least_scale <= 0x1p127))
        refuse("least_scale", rules.least_scale, "must be 0 or more and at most 2^127");
    if (!(rules.most_scale >= rules.least_scale && rules.most_scale <= 0x1p127))
        refuse("most_scale", rules.most_scale, "must be least_scale or more and at most 2^127");
    if (!(rules.initial_scale > 0 && rules.initial_scale >= rules.least_scale &&
          rules.initial_scale <= rules.most_scale))
        refuse("initial_scale", rules.initial_scale,
               "must be more than 0, least_scale or more and at most most_scale");
    if (!(rules.growth_factor > 1 && std::isfinite(rules.growth_factor)))
        refuse("growth_factor", rules.growth_factor, "must be a finite number above 1");
    if (!(rules.backoff_factor > 0 && rules.backoff_factor < 1))
        refuse("backoff_factor", rules.backoff_factor, "must be above 0 and below 1");
    if (rules.growth_interval == 0)
        refuse("growth_interval", 0, "must be 1 or more");
    if (rules.hysteresis == 0)
        refuse("hysteresis", 0, "must be 1 or more");
}

LossScale::LossScale(const LossScaleRules& rules)
    : rules_{checked(rules)},
      state_{.scale = bounded(rules, rules.initial_scale),
             .growth_tracker = 0,
             .hysteresis_left = rules.hysteresis,
             .skipped_in_row = 0,
             .skipped = 0} {}

LossScale::LossScale(const LossScaleRules& rules, const LossScaleState& state)
    : rules_{checked(rules)}, state_{state} {
    if (!(state.scale >= bounded(rules, 0) && state.scale <= bounded(rules, rules.most_scale)))
        refuse("the saved scale", state.scale, "must lie between least_scale and most_scale");
    if (state.growth_tracker >= rules.growth_interval)
        refuse("the saved growth_tracker", static_cast<double>(state.growth_tracker),
               "must be below growth_interval");
    if (state.hysteresis_left == 0 || state.hysteresis_left > rules.hysteresis)
        refuse("the saved hysteresis_left", static_cast<double>(state.hysteresis_left),
               "must be 1 or more and at most hysteresis");
    if (state.skipped_in_row > state.skipped)
        refuse("the saved skipped_in_row", static_cast<double>(state.skipped_in_row),
               "must be at most skipped");
}

float LossScale::gradient_scale() const noexcept {
    return static_cast<float>(1 / static_cast<double>(state_.scale));
}

StepVerdict LossScale::update(std::uint64_t nonfinite_gradients) noexcept {
    if (nonfinite_gradients != 0) {
        back_off();
        ++state_.skipped_in_row;
        ++state_.skipped;
        return StepVerdict::skip;
    }
    state_.skipped_in_row = 0;
    if (++state_.growth_tracker == rules_.growth_interval)
        grow();
    return StepVerdict::apply;
}

void LossScale::grow() noexcept {
    state_.scale = bounded(rules_, state_.scale * rules_.growth_factor);
    state_.growth_tracker = 0;
    state_.hysteresis_left = rules_.hysteresis;
}

void LossScale::back_off() noexcept {
    state_.growth_tracker = 0;
    if (state_.hysteresis_left > 1)
        --state_.hysteresis_left;
    else
        state_.scale = bounded(rules_, state_.scale * rules_.backoff_factor);
}

}  // namespace spillway::cpu_optim
