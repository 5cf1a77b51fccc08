// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu_optim/gradient_scan.h"
#include "cpu_optim/isa.h"

/// Gradient clipping. By norm it is a factor on gradients, the `gradient_scale` of an update; by
/// value it changes the gradients in place.
namespace spillway::cpu_optim {

/// min(1, most_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_, of a sum of squares over
/// gradients that are to be multiplied by `gradient_scale` (1 / loss scale). A norm that is NaN
/// clips nothing. The sum may be that of all gradients (the global norm), or of one tensor: each
/// tensor is then clipped by its own norm. That is inexact, since it is another direction than that
/// of the clipped global gradient; but no update has to wait for the gradients of all others.
/// Throws std::invalid_argument unless most_norm is above 0.
[[nodiscard]] double clip_coefficient(double most_norm, double sum_of_squares,
                                      double gradient_scale);

/// Clamps each gradient to [-most, most], as torch.nn.utils.clip_grad_value_: an infinite one
/// becomes the bound, a NaN stays as it is. In 16 bits the bound is `most` rounded to nearest even.
/// Gradients that are yet to be divided by a loss scale are clamped to `most` times that scale.
/// Returns how many have changed. Bit-identical on every Isa and for every way of cutting. Throws
/// std::invalid_argument unless `most` is 0 or more.
std::uint64_t clip_values(Isa isa, void* gradient, GradientType type, std::size_t elements,
                          float most);

}  // namespace spillway::cpu_optim
