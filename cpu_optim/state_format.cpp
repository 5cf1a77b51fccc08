// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/state_format.h"

#include <stdexcept>

#include <fmt/format.h>

#include "cpu_optim/moment_kinds.h"

namespace spillway::cpu_optim {
namespace {

/// Why this rule needs its state exact; "" if it does not.
std::string_view reason_for_exact_state(const HyperParameters& hyper) {
    if (const auto* const adam = std::get_if<AdamHyperParameters>(&hyper))
        return adam->amsgrad == Amsgrad::on
                   ? "amsgrad keeps a maximum, which would climb with the noise of the rounding"
                   : "";
    if (const auto* const rmsprop = std::get_if<RmspropHyperParameters>(&hyper))
        return rmsprop->centred == Centred::on
                   ? "centred takes the difference of two means, which rounding could make negative"
                   : "";
    return "";
}

}  // namespace

std::string_view state_format_name(StateFormat format) noexcept {
    switch (format) {
        case StateFormat::fp32:
            return "fp32";
        case StateFormat::bf16:
            return "bf16";
        case StateFormat::int8:
            return "int8";
    }
    return "unknown";
}

StateFormat parse_state_format(std::string_view name) {
    for (const auto format : every_state_format) {
        if (state_format_name(format) == name)
            return format;
    }
    throw std::invalid_argument(
        fmt::format("\"{}\" is no format of state; it takes fp32, bf16 or int8", name));
}

std::array<MomentKind, most_lossy_planes> moment_kinds(const HyperParameters& hyper) noexcept {
    using Kinds = std::array<MomentKind, most_lossy_planes>;
    struct KindsOf {
        Kinds operator()(const AdamHyperParameters&) const { return kinds_of<AdamCoefficients>; }
        Kinds operator()(const SgdHyperParameters&) const { return kinds_of<SgdCoefficients>; }
        Kinds operator()(const AdagradHyperParameters&) const {
            return kinds_of<AdagradCoefficients>;
        }
        Kinds operator()(const LionHyperParameters&) const { return kinds_of<LionCoefficients>; }
        Kinds operator()(const RmspropHyperParameters&) const {
            return kinds_of<RmspropCoefficients>;
        }
    };
    return std::visit(KindsOf{}, hyper);
}

void check(const HyperParameters& hyper, StateFormat format) {
    check(hyper);
    if (is_exact(format))
        return;
    if (const auto reason = reason_for_exact_state(hyper); !reason.empty())
        throw std::invalid_argument(
            fmt::format("{} cannot keep its state in {}: {}; take fp32 state",
                        optimizer_name(hyper), state_format_name(format), reason));
}

}  // namespace spillway::cpu_optim
