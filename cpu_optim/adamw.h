// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu_optim/isa.h"

namespace spillway::cpu_optim {

/// What the user sets, per group.
struct AdamWHyperParameters {
    double learning_rate = 1e-3;
    double beta1 = 0.9;
    double beta2 = 0.999;
    double epsilon = 1e-8;
    double weight_decay = 0.01;
};

/// The numbers one step of one tensor needs, derived in double and narrowed once.
/// Loshchilov & Hutter 2019 (arXiv:1711.05101), Algorithm 2, in torch's order of operations:
///   g   = gradient * gradient_scale
///   w  -= w * decay                          decay = lr * weight_decay   (before the moments are
///   used) m   = m + (1 - beta1) * (g - m)          as torch's lerp v   = beta2 * v + (1 - beta2) *
///   g * g w  -= step_size * m / (sqrt(v) * inv_sqrt_bias_correction2 + epsilon)      step_size =
///   lr / (1 - beta1^t)
/// The reference states exactly which products are fused; every instruction set follows it.
struct AdamWCoefficients {
    float gradient_scale;
    float decay;
    float one_minus_beta1;
    float beta2;
    float one_minus_beta2;
    float inv_sqrt_bias_correction2;
    float epsilon;
    float step_size;
};

/// `step` is this tensor's own count, 1 at its first update; powers of beta by repeated squaring in
/// double, so that an interrupted run and an uninterrupted one use the same numbers.
/// `gradient_scale` is the clip coefficient (and 1/loss scale). Throws std::invalid_argument on
/// hyper-parameters out of range (lr, epsilon, weight_decay negative or non-finite, betas outside
/// [0,1)).
[[nodiscard]] AdamWCoefficients make_coefficients(const AdamWHyperParameters& hyper,
                                                  std::uint64_t step, double gradient_scale);

/// One run of elements with one set of coefficients. All spans have one length; none overlap.
struct AdamWSpans {
    std::span<std::uint16_t> weight;  ///< bf16 half of the split master, in and out
    std::span<std::int16_t> residue;  ///< the other half, in and out
    std::span<float> m;
    std::span<float> v;
    std::span<const float> gradient;
};

/// Updates the run in place. Returns the number of new masters without a finite bf16 half; if it is
/// not 0 the run must not be stored. Bit-identical on every Isa and for every way of cutting a run
/// in pieces.
[[nodiscard]] std::size_t adamw_update(Isa isa, const AdamWCoefficients& coefficients,
                                       const AdamWSpans& spans);

/// The scalar reference: one element, in the order given above.
struct AdamWElement {
    float master, m, v;
};
[[nodiscard]] AdamWElement adamw_reference(const AdamWCoefficients& coefficients,
                                           AdamWElement element, float gradient);

}  // namespace spillway::cpu_optim
