// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cpu_optim/weight_average.h"

namespace spillway::offload {

/// How the weights are averaged over the updates: after every `every`-th the average takes them up.
/// What it is after an update is a function of the weights after each, and of nothing else: of no
/// placement, commit or resume.
struct AverageRule {
    cpu_optim::AverageParameters parameters;
    std::uint64_t every = 1;

    /// Whether it takes up the weights after update number `update`, of 1 on.
    [[nodiscard]] bool takes(std::uint64_t update) const noexcept {
        return update != 0 && update % every == 0;
    }
    /// Whether there is an average after that update.
    [[nodiscard]] bool is_there(std::uint64_t update) const noexcept { return update >= every; }
    /// For update number `update`; none if it takes up nothing then. Throws as
    /// cpu_optim::make_average_coefficients().
    [[nodiscard]] std::optional<cpu_optim::AverageCoefficients> coefficients(
        std::uint64_t update) const {
        if (!takes(update))
            return std::nullopt;
        return cpu_optim::make_average_coefficients(parameters, update / every - 1);
    }
};

/// "off" (none), "ema:DECAY" (taken up after every update) or "swa:EVERY" (after each EVERY-th).
/// Throws std::invalid_argument saying what is wrong.
[[nodiscard]] std::optional<AverageRule> parse_average(const std::string& text);

}  // namespace spillway::offload
