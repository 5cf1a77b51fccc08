// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>

#include "cpu_optim/elementwise_coefficients.h"
#include "cpu_optim/layerwise_coefficients.h"
#include "cpu_optim/state_format.h"

namespace spillway::cpu_optim::detail {

/// moment_kinds() by the type of a rule's coefficients; planes the rule does not use have any kind.
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

}  // namespace spillway::cpu_optim::detail
