// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>

#include "cpu_optim/elementwise.h"

/// The scalar reference of every elementwise rule, one element at a time, in torch's order of
/// operations. A product is fused with the addition after it where std::fma stands; every other
/// operation rounds on its own (the build sets -ffp-contract=off). Division and square root are
/// IEEE's. Every instruction set follows it bit by bit.
namespace spillway::cpu_optim {

/// A weight and its state, `state` in the order elementwise.h gives. Every NaN that a reference
/// returns is the same one.
struct ElementwiseElement {
    float master = 0;
    std::array<float, most_state_planes> state{};
};

[[nodiscard]] ElementwiseElement updated(const AdamCoefficients& coefficients,
                                         const ElementwiseElement& old, float gradient);
[[nodiscard]] ElementwiseElement updated(const SgdCoefficients& coefficients,
                                         const ElementwiseElement& old, float gradient);
[[nodiscard]] ElementwiseElement updated(const AdagradCoefficients& coefficients,
                                         const ElementwiseElement& old, float gradient);
[[nodiscard]] ElementwiseElement updated(const LionCoefficients& coefficients,
                                         const ElementwiseElement& old, float gradient);
[[nodiscard]] ElementwiseElement updated(const RmspropCoefficients& coefficients,
                                         const ElementwiseElement& old, float gradient);

}  // namespace spillway::cpu_optim
