// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "cpu_optim/elementwise_coefficients.h"
#include "cpu_optim/layerwise_coefficients.h"

/// What the planes of a rule's state hold, by the type of its coefficients. Included by kernels.
namespace spillway::cpu_optim {

/// What a plane of state holds, which decides how it may be rounded.
enum class MomentKind : std::uint8_t {
    mean,   ///< signed: a mean of gradients, a momentum buffer
    square  ///< 0 or more: a mean or sum of squares, which an update divides by
};

/// Planes that a state kept in a lossy format may have.
inline constexpr std::size_t most_lossy_planes = 2;

/// In the rule's order; planes it does not use have any kind.
template <class Coefficients>
inline constexpr std::array<MomentKind, most_lossy_planes> kinds_of{MomentKind::mean,
                                                                    MomentKind::mean};
template <>
inline constexpr std::array<MomentKind, most_lossy_planes> kinds_of<AdamCoefficients>{
    MomentKind::mean, MomentKind::square};
template <>
inline constexpr std::array<MomentKind, most_lossy_planes> kinds_of<AdagradCoefficients>{
    MomentKind::square, MomentKind::square};
template <>
inline constexpr std::array<MomentKind, most_lossy_planes> kinds_of<RmspropCoefficients>{
    MomentKind::square, MomentKind::mean};
template <>
inline constexpr std::array<MomentKind, most_lossy_planes> kinds_of<LambStep>{MomentKind::mean,
                                                                              MomentKind::square};

/// Whether a rule with these coefficients may keep its state in fp32 alone: check() of
/// state_format.h says why.
template <class Coefficients>
[[nodiscard]] constexpr bool needs_exact_state(const Coefficients& coefficients) noexcept {
    if constexpr (requires { coefficients.amsgrad; })
        return coefficients.amsgrad == Term::on;
    if constexpr (requires { coefficients.centred; })
        return coefficients.centred == Term::on;
    return false;
}

}  // namespace spillway::cpu_optim
