// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <span>

#include "cpu_optim/adafactor.h"

/// The scalar reference of Adafactor. A product is fused with the addition after it where std::fma
/// stands; every other operation rounds on its own. Every NaN that is stored is the same one.
namespace spillway::cpu_optim {

/// The elements' share of it. `gradient` is scaled already.
[[nodiscard]] float moved_variance(const AdafactorCoefficients& coefficients, float variance,
                                   float gradient);
[[nodiscard]] float adafactor_update(const AdafactorCoefficients& coefficients, float variance,
                                     float gradient);
[[nodiscard]] float adafactor_weight(const AdafactorCoefficients& coefficients, float step,
                                     float weight, float update);

/// One matrix, or one vector, and its second moment.
struct AdafactorMatrix {
    MatrixShape shape;
    std::span<float> weights;
    std::span<float> rows;
    std::span<float> columns;
    std::span<const float> gradient;
};
struct AdafactorVector {
    std::span<float> weights;
    std::span<float> variances;
    std::span<const float> gradient;
};

/// One step of a whole tensor, line by line as the paper has it: Algorithm 4 for a matrix and
/// Algorithm 5 for a vector.
void adafactor_by_definition(const AdafactorHyperParameters& hyper, std::uint64_t step,
                             double gradient_scale, const AdafactorMatrix& tensor);
void adafactor_by_definition(const AdafactorHyperParameters& hyper, std::uint64_t step,
                             double gradient_scale, const AdafactorVector& tensor);

}  // namespace spillway::cpu_optim
