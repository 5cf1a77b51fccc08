// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/elementwise_reference.h"

#include <cmath>

#include "cpu_optim/detail/one_nan.h"

namespace spillway::cpu_optim {
namespace {

using detail::with_one_nan;

float with_l2(float gradient, float l2, float w) {
    return l2 != 0 ? std::fma(l2, w, gradient) : gradient;
}

/// NaN if either is one, unlike std::fmax.
float maximum(float a, float b) {
    return std::isnan(a) || a > b ? a : b;
}

}  // namespace

ElementwiseElement updated(const AdamCoefficients& c, const ElementwiseElement& old,
                           float gradient) {
    auto [w, state] = old;
    auto [m, v, largest_v] = state;
    float g = gradient * c.gradient_scale;
    if (c.decoupled_decay == Term::on)
        w = std::fma(-c.decay, w, w);
    else
        g = with_l2(g, c.l2, w);
    m = std::fma(c.one_minus_beta1, g - m, m);
    v = std::fma(c.one_minus_beta2 * g, g, c.beta2 * v);
    if (c.amsgrad == Term::on)
        largest_v = maximum(largest_v, v);
    const float used_v = c.amsgrad == Term::on ? largest_v : v;
    const float root = std::fma(std::sqrt(used_v), c.inv_sqrt_bias_correction2, c.epsilon);
    const float direction =
        c.nesterov == Term::on ? std::fma(c.step_size, m, c.gradient_step * g) : c.step_size * m;
    w = w - direction / root;
    return {with_one_nan(w), {with_one_nan(m), with_one_nan(v), with_one_nan(largest_v)}};
}

ElementwiseElement updated(const SgdCoefficients& c, const ElementwiseElement& old,
                           float gradient) {
    auto [w, state] = old;
    float buffer = state[0];
    const float g = with_l2(gradient * c.gradient_scale, c.l2, w);
    float direction = g;
    if (c.buffer != MomentumBuffer::none) {
        buffer = c.buffer == MomentumBuffer::starts
                     ? g
                     : std::fma(c.one_minus_dampening, g, c.momentum * buffer);
        direction = c.nesterov == Term::on ? std::fma(c.momentum, buffer, g) : buffer;
    }
    w = std::fma(-c.learning_rate, direction, w);
    return {with_one_nan(w), {with_one_nan(buffer)}};
}

ElementwiseElement updated(const AdagradCoefficients& c, const ElementwiseElement& old,
                           float gradient) {
    auto [w, state] = old;
    float sum = state[0];
    const float g = with_l2(gradient * c.gradient_scale, c.l2, w);
    sum = std::fma(g, g, sum + c.added_accumulator);
    w = w - (c.step_size * g) / (std::sqrt(sum) + c.epsilon);
    return {with_one_nan(w), {with_one_nan(sum)}};
}

ElementwiseElement updated(const LionCoefficients& c, const ElementwiseElement& old,
                           float gradient) {
    auto [w, state] = old;
    float m = state[0];
    const float g = gradient * c.gradient_scale;
    w = std::fma(-c.decay, w, w);
    const float direction = std::fma(c.one_minus_beta1, g, c.beta1 * m);
    // learning_rate * sign(direction): 0 for either zero, and NaN is not hidden.
    const float magnitude = std::abs(direction);
    w = w - (magnitude > 0 ? std::copysign(c.learning_rate, direction) : magnitude);
    m = std::fma(c.one_minus_beta2, g, c.beta2 * m);
    return {with_one_nan(w), {with_one_nan(m)}};
}

ElementwiseElement updated(const RmspropCoefficients& c, const ElementwiseElement& old,
                           float gradient) {
    auto [w, state] = old;
    const bool has_momentum = c.has_momentum == Term::on;
    float& square = state[0];
    float& buffer = state[1];
    float& mean = has_momentum ? state[2] : state[1];
    const float g = with_l2(gradient * c.gradient_scale, c.l2, w);
    square = std::fma(c.one_minus_alpha * g, g, c.alpha * square);
    float variance = square;
    if (c.centred == Term::on) {
        mean = std::fma(c.one_minus_alpha, g - mean, mean);
        variance = std::fma(-mean, mean, square);
    }
    const float root = std::sqrt(variance) + c.epsilon;
    if (has_momentum) {
        buffer = std::fma(c.momentum, buffer, g / root);
        w = std::fma(-c.learning_rate, buffer, w);
    } else {
        w = w - (c.learning_rate * g) / root;
    }
    return {with_one_nan(w),
            {with_one_nan(state[0]), with_one_nan(state[1]), with_one_nan(state[2])}};
}

}  // namespace spillway::cpu_optim
