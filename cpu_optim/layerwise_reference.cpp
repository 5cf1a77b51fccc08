// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/layerwise_reference.h"

#include <cmath>

#include "cpu_optim/detail/one_nan.h"

namespace spillway::cpu_optim {
namespace {

using detail::with_one_nan;

float with_decay(float direction, float weight_decay, float w) {
    return weight_decay != 0 ? std::fma(weight_decay, w, direction) : direction;
}

/// From the new moments alone.
float direction_of(const LambCoefficients& c, const ElementwiseElement& element) {
    const auto [m, v, unused] = element.state;
    const float root = std::fma(std::sqrt(v), c.inv_sqrt_bias_correction2, c.epsilon);
    return with_decay((c.inv_bias_correction1 * m) / root, c.weight_decay, element.master);
}

}  // namespace

PreparedElement prepared(const LambCoefficients& c, const ElementwiseElement& old, float gradient) {
    ElementwiseElement element = old;
    float& m = element.state[0];
    float& v = element.state[1];
    const float g = gradient * c.gradient_scale;
    m = with_one_nan(std::fma(c.one_minus_beta1, g - m, m));
    v = with_one_nan(std::fma(c.one_minus_beta2 * g, g, c.beta2 * v));
    return {element, direction_of(c, element)};
}

PreparedElement prepared(const LarsCoefficients& c, const ElementwiseElement& old, float gradient) {
    return {old, gradient * c.gradient_scale};
}

ElementwiseElement applied(const LambCoefficients& c, float step, const ElementwiseElement& old,
                           float /*gradient*/) {
    ElementwiseElement element = old;
    element.master = with_one_nan(std::fma(-step, direction_of(c, old), old.master));
    return element;
}

ElementwiseElement applied(const LarsCoefficients& c, float step, const ElementwiseElement& old,
                           float gradient) {
    ElementwiseElement element = old;
    float& buffer = element.state[0];
    const float direction = with_decay(gradient * c.gradient_scale, c.weight_decay, old.master);
    buffer = with_one_nan(std::fma(step, direction, c.momentum * buffer));
    element.master = with_one_nan(old.master - buffer);
    return element;
}

ElementwiseElement updated(const LambStep& step, const ElementwiseElement& old, float gradient) {
    return applied(step.coefficients, step.step, prepared(step.coefficients, old, gradient).element,
                   gradient);
}

ElementwiseElement updated(const LarsStep& step, const ElementwiseElement& old, float gradient) {
    return applied(step.coefficients, step.step, prepared(step.coefficients, old, gradient).element,
                   gradient);
}

}  // namespace spillway::cpu_optim
