// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>

/// The numbers one step of one tensor needs, one plain struct per rule; elementwise_reference.h
/// says what each does. In all of them `gradient_scale` is negative when the objective is
/// maximised, and an l2 of 0 means that the weight takes no part in the gradient, infinite or not.
namespace spillway::cpu_optim {

enum class Term : std::uint8_t { off, on };
/// What an SGD momentum buffer does in this step.
enum class MomentumBuffer : std::uint8_t { none, starts, continues };

struct AdamCoefficients {
    float gradient_scale;
    Term decoupled_decay;  ///< on for AdamW whatever its decay, off for Adam
    float decay;           ///< learning_rate * weight_decay
    float l2;              ///< for Adam, 0 with decoupled decay
    float one_minus_beta1;
    float beta2;
    float one_minus_beta2;
    float inv_sqrt_bias_correction2;  ///< 1 / sqrt(1 - beta2^step)
    float epsilon;
    float step_size;  ///< of the moment: learning_rate / (1 - beta1^step), or NAdam's share of it
    Term amsgrad;
    Term nesterov;
    float gradient_step;  ///< NAdam's share of the gradient itself, 0 else
};

struct SgdCoefficients {
    float gradient_scale;
    float l2;
    MomentumBuffer buffer;
    float momentum;
    float one_minus_dampening;
    Term nesterov;
    float learning_rate;
};

struct AdagradCoefficients {
    float gradient_scale;
    float l2;
    float added_accumulator;  ///< the initial value at a tensor's first step, 0 later
    float epsilon;
    float step_size;  ///< learning_rate / (1 + (step - 1) * learning_rate_decay)
};

struct LionCoefficients {
    float gradient_scale;
    float decay;  ///< learning_rate * weight_decay
    float beta1;
    float one_minus_beta1;
    float beta2;
    float one_minus_beta2;
    float learning_rate;
};

struct RmspropCoefficients {
    float gradient_scale;
    float l2;
    float alpha;
    float one_minus_alpha;
    float epsilon;
    Term has_momentum;
    float momentum;
    Term centred;
    float learning_rate;
};

/// Values of state that a rule with these coefficients uses.
[[nodiscard]] constexpr std::size_t state_planes(const AdamCoefficients& c) noexcept {
    return c.amsgrad == Term::on ? 3 : 2;
}
[[nodiscard]] constexpr std::size_t state_planes(const SgdCoefficients& c) noexcept {
    return c.buffer == MomentumBuffer::none ? 0 : 1;
}
[[nodiscard]] constexpr std::size_t state_planes(const AdagradCoefficients&) noexcept {
    return 1;
}
[[nodiscard]] constexpr std::size_t state_planes(const LionCoefficients&) noexcept {
    return 1;
}
[[nodiscard]] constexpr std::size_t state_planes(const RmspropCoefficients& c) noexcept {
    return 1u + (c.has_momentum == Term::on ? 1u : 0u) + (c.centred == Term::on ? 1u : 0u);
}

}  // namespace spillway::cpu_optim
