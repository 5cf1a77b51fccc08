// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include "cpu_optim/elementwise_coefficients.h"

// The rules of cpu_optim/elementwise_reference.h on one element, operation by operation. nvcc is
// told not to fuse (--fmad=false), so that a product and a sum are fused where fmaf stands and
// nowhere else; its division and square root round to nearest and subnormal numbers are kept, which
// are its defaults.
namespace spillway::cuda {

__device__ __forceinline__ float one_nan(float value) {
    return value != value ? __uint_as_float(0x7FC00000u) : value;
}

struct Element {
    float w;
    float state[3];
};

/// g with the weight's share.
__device__ __forceinline__ float decayed(float g, float l2, float w) {
    return l2 != 0 ? fmaf(l2, w, g) : g;
}

__device__ __forceinline__ void update(const cpu_optim::AdamCoefficients& c, Element& e,
                                       float gradient) {
    float& m = e.state[0];
    float& v = e.state[1];
    float g = gradient * c.gradient_scale;
    if (c.decoupled_decay == cpu_optim::Term::on)
        e.w = fmaf(-c.decay, e.w, e.w);
    else
        g = decayed(g, c.l2, e.w);
    m = fmaf(c.one_minus_beta1, g - m, m);
    v = fmaf(c.one_minus_beta2 * g, g, c.beta2 * v);
    float used_v = v;
    if (c.amsgrad == cpu_optim::Term::on) {
        float& largest_v = e.state[2];
        if (!(largest_v != largest_v || largest_v > v))
            largest_v = v;
        used_v = largest_v;
    }
    const float root = fmaf(sqrtf(used_v), c.inv_sqrt_bias_correction2, c.epsilon);
    const float direction = c.nesterov == cpu_optim::Term::on
                                ? fmaf(c.step_size, m, c.gradient_step * g)
                                : c.step_size * m;
    e.w = e.w - direction / root;
}

__device__ __forceinline__ void update(const cpu_optim::SgdCoefficients& c, Element& e,
                                       float gradient) {
    const float g = decayed(gradient * c.gradient_scale, c.l2, e.w);
    float direction = g;
    if (c.buffer != cpu_optim::MomentumBuffer::none) {
        float& buffer = e.state[0];
        const bool starts = c.buffer == cpu_optim::MomentumBuffer::starts;
        buffer = starts ? g : fmaf(c.one_minus_dampening, g, c.momentum * buffer);
        direction = c.nesterov == cpu_optim::Term::on ? fmaf(c.momentum, buffer, g) : buffer;
    }
    e.w = fmaf(-c.learning_rate, direction, e.w);
}

__device__ __forceinline__ void update(const cpu_optim::AdagradCoefficients& c, Element& e,
                                       float gradient) {
    float& sum = e.state[0];
    const float g = decayed(gradient * c.gradient_scale, c.l2, e.w);
    sum = fmaf(g, g, sum + c.added_accumulator);
    e.w = e.w - (c.step_size * g) / (sqrtf(sum) + c.epsilon);
}

__device__ __forceinline__ void update(const cpu_optim::LionCoefficients& c, Element& e,
                                       float gradient) {
    float& m = e.state[0];
    const float g = gradient * c.gradient_scale;
    e.w = fmaf(-c.decay, e.w, e.w);
    const float direction = fmaf(c.one_minus_beta1, g, c.beta1 * m);
    const float magnitude = fabsf(direction);
    e.w = e.w - (magnitude > 0 ? copysignf(c.learning_rate, direction) : magnitude);
    m = fmaf(c.one_minus_beta2, g, c.beta2 * m);
}

__device__ __forceinline__ void update(const cpu_optim::RmspropCoefficients& c, Element& e,
                                       float gradient) {
    const bool has_momentum = c.has_momentum == cpu_optim::Term::on;
    float& square = e.state[0];
    const float g = decayed(gradient * c.gradient_scale, c.l2, e.w);
    square = fmaf(c.one_minus_alpha * g, g, c.alpha * square);
    float variance = square;
    if (c.centred == cpu_optim::Term::on) {
        float& mean = has_momentum ? e.state[2] : e.state[1];
        mean = fmaf(c.one_minus_alpha, g - mean, mean);
        variance = fmaf(-mean, mean, square);
    }
    const float root = sqrtf(variance) + c.epsilon;
    if (has_momentum) {
        float& buffer = e.state[1];
        buffer = fmaf(c.momentum, buffer, g / root);
        e.w = fmaf(-c.learning_rate, buffer, e.w);
    } else {
        e.w = e.w - (c.learning_rate * g) / root;
    }
}

}  // namespace spillway::cuda
