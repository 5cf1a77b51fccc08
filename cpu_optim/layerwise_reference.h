// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include "cpu_optim/elementwise_reference.h"
#include "cpu_optim/layerwise.h"

/// The scalar reference of both passes of every layerwise rule, one element at a time, under the
/// rules of elementwise_reference.h.
namespace spillway::cpu_optim {

/// Pass 1: the element with its new moments, and the value whose square is summed.
struct PreparedElement {
    ElementwiseElement element;
    float direction;
};
[[nodiscard]] PreparedElement prepared(const LambCoefficients& coefficients,
                                       const ElementwiseElement& old, float gradient);
[[nodiscard]] PreparedElement prepared(const LarsCoefficients& coefficients,
                                       const ElementwiseElement& old, float gradient);

/// Pass 2 of what pass 1 has prepared.
[[nodiscard]] ElementwiseElement applied(const LambCoefficients& coefficients, float step,
                                         const ElementwiseElement& prepared, float gradient);
[[nodiscard]] ElementwiseElement applied(const LarsCoefficients& coefficients, float step,
                                         const ElementwiseElement& prepared, float gradient);

/// Pass 2 as it is made: both, one after the other.
[[nodiscard]] ElementwiseElement updated(const LambStep& step, const ElementwiseElement& old,
                                         float gradient);
[[nodiscard]] ElementwiseElement updated(const LarsStep& step, const ElementwiseElement& old,
                                         float gradient);

}  // namespace spillway::cpu_optim
