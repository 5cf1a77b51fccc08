// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>

/// The numbers one step of one tensor needs under an optimizer of whole tensors, one plain struct
/// per rule; layerwise_reference.h says what each does.
namespace spillway::cpu_optim {

struct LambCoefficients {
    float gradient_scale;  ///< negative when the objective is maximised
    float one_minus_beta1;
    float beta2;
    float one_minus_beta2;
    float inv_bias_correction1;       ///< 1 / (1 - beta1^step)
    float inv_sqrt_bias_correction2;  ///< 1 / sqrt(1 - beta2^step)
    float epsilon;
    float weight_decay;  ///< at 0 the weight takes no part in the direction, infinite or not
};
struct LarsCoefficients {
    float gradient_scale;  ///< negative when the objective is maximised
    float momentum;
    float weight_decay;  ///< at 0 the weight takes no part in the direction, infinite or not
};
/// With the tensor's own step (layer_step()): all that an element is updated by.
struct LambStep {
    LambCoefficients coefficients;
    float step;
};
struct LarsStep {
    LarsCoefficients coefficients;
    float step;
};

/// Values of state that a rule with these coefficients uses.
[[nodiscard]] constexpr std::size_t state_planes(const LambStep&) noexcept {
    return 2;
}
[[nodiscard]] constexpr std::size_t state_planes(const LarsStep&) noexcept {
    return 1;
}

}  // namespace spillway::cpu_optim
