// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cmath>
#include <stdexcept>
#include <string_view>

#include <fmt/format.h>

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

}  // namespace spillway::cpu_optim::detail
