// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string_view>

#include <fmt/format.h>

#include "cpu_optim/elementwise.h"

namespace spillway::cpu_optim::detail {

/// Refuses and narrows in the name of one optimizer; all throw std::invalid_argument.
class HyperChecker {
  public:
    explicit HyperChecker(std::string_view optimizer) : optimizer_{optimizer} {}

    void finite(std::string_view field, double value) const {
        if (!std::isfinite(value))
            refuse(field, value, "must be a finite number");
    }
    void not_negative(std::string_view field, double value) const {
        if (!std::isfinite(value) || value < 0)
            refuse(field, value, "must be a finite number, 0 or more");
    }
    void beta(std::string_view field, double value) const {
        if (!(value >= 0 && value < 1))
            refuse(field, value, "must be at least 0 and below 1");
    }
    [[nodiscard]] float narrow(std::string_view field, double value) const {
        const auto narrowed = static_cast<float>(value);
        if (!std::isfinite(narrowed))
            throw std::invalid_argument(
                fmt::format("{}: {} comes to {}, more than a float holds: lower the "
                            "hyper-parameters behind it",
                            optimizer_, field, value));
        return narrowed;
    }
    [[noreturn]] void refuse(std::string_view field, double value, std::string_view allowed) const {
        throw std::invalid_argument(
            fmt::format("{}: {} is {} and {}", optimizer_, field, value, allowed));
    }

  private:
    std::string_view optimizer_;
};

/// What a rule's coefficients depend on beside its hyper-parameters.
struct RuleStep {
    std::uint64_t number;
    double gradient_scale;
};

[[nodiscard]] inline RuleStep checked_step(const HyperChecker& checker, std::uint64_t step,
                                           double gradient_scale) {
    checker.not_negative("gradient_scale", gradient_scale);
    if (step == 0)
        checker.refuse("step", 0, "must be 1 at a tensor's first update");
    return {.number = step, .gradient_scale = gradient_scale};
}

/// Negating is exact, so a maximised objective costs no operation of its own.
[[nodiscard]] inline float signed_scale(const HyperChecker& checker, Objective objective,
                                        double gradient_scale) {
    const float scale = checker.narrow("gradient_scale", gradient_scale);
    return objective == Objective::maximise ? -scale : scale;
}

}  // namespace spillway::cpu_optim::detail
