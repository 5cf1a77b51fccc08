// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

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

enum class AverageKind : std::uint8_t { ema, swa };

/// What of a rule is fixed when a run is made: an average that went on otherwise would start anew
/// or weigh wrongly. An EMA's decay may change.
struct AverageBasis {
    AverageKind kind = AverageKind::ema;
    std::uint64_t every = 1;

    friend bool operator==(const AverageBasis&, const AverageBasis&) = default;
};
[[nodiscard]] AverageBasis basis_of(const AverageRule& rule) noexcept;
/// "ema" or "swa".
[[nodiscard]] std::string_view average_kind_name(AverageKind kind) noexcept;

/// "off" (none), "ema:DECAY" (taken up after every update) or "swa:EVERY" (after each EVERY-th).
/// Throws std::invalid_argument saying what is wrong.
[[nodiscard]] std::optional<AverageRule> parse_average(const std::string& text);

}  // namespace spillway::offload
