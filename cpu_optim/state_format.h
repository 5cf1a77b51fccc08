// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "cpu_optim/elementwise.h"
#include "cpu_optim/moment_kinds.h"

namespace spillway::cpu_optim {

/// How an optimizer's state is kept between updates. Arithmetic is fp32 in all of them; fp32 alone
/// is exact.
enum class StateFormat : std::uint8_t {
    fp32,
    bf16,  ///< means to nearest even, squares by stochastic rounding
    int8,  ///< companded in blocks of 256 with a scale each (moment_codec.h), stochastic rounding
};
inline constexpr std::array every_state_format{StateFormat::fp32, StateFormat::bf16,
                                               StateFormat::int8};

/// "fp32", "bf16", "int8".
[[nodiscard]] std::string_view state_format_name(StateFormat format) noexcept;
/// Throws std::invalid_argument naming the value found and what is accepted.
[[nodiscard]] StateFormat parse_state_format(std::string_view name);

[[nodiscard]] constexpr bool is_exact(StateFormat format) noexcept {
    return format == StateFormat::fp32;
}

/// What the state planes of this rule hold, in its order.
[[nodiscard]] std::array<MomentKind, most_lossy_planes> moment_kinds(
    const HyperParameters& hyper) noexcept;

/// Throws std::invalid_argument naming optimizer and format if they do not go together: amsgrad,
/// whose maximum would climb with the noise of the rounding, and centred RMSprop, whose variance it
/// would make negative, need fp32.
void check(const HyperParameters& hyper, StateFormat format);

}  // namespace spillway::cpu_optim
