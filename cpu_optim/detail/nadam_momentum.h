// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>

namespace spillway::cpu_optim::detail {

/// What NAdam takes for beta1 at step t (Dozat 2016, section 3; 0.96 as he and torch have it):
/// mu(t) = beta1 * (1 - 0.96^(t * momentum_decay) / 2).
///
/// All of this is additions and multiplications in double, in a fixed order: the same bits with any
/// library of functions.
[[nodiscard]] double nadam_momentum(double beta1, double momentum_decay, std::uint64_t step);

/// mu(1) * mu(2) * ... * mu(step), from the step alone and in a time that hardly depends on it: of
/// a running product a tensor would have to keep one number more, and a changed beta1 would half
/// apply. Within 1e-12; what is used of it is its distance from 1.
[[nodiscard]] double nadam_momentum_product(double beta1, double momentum_decay,
                                            std::uint64_t step);

}  // namespace spillway::cpu_optim::detail
