// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/compute/epilogue.h"

#include "engine/compute/detail/kernel_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/compute/epilogue.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "engine/compute/detail/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::engine {
namespace HWY_NAMESPACE {
namespace {

/// 2u = x (slope + cubic x^2): 2 sqrt(2 / pi), and 0.044715 times that.
constexpr float slope = 1.5957691216f;
constexpr float cubic = 0.0713548163f;

HWY_INLINE SigmoidPair gelu_gate(Lanes x) {
    return sigmoid(multiply(x, fma(multiply(x, x), broadcast(cubic), broadcast(slope))));
}

void bias_row(std::size_t columns, const float* bias, float* values) {
    for (std::size_t i = 0; i < columns; i += lane_count)
        store_of(values, i, columns, add(load_of(values, i, columns), load_of(bias, i, columns)));
}

void residual_row(std::size_t columns, const float* bias, const float* residual, float* values) {
    for (std::size_t i = 0; i < columns; i += lane_count) {
        const Lanes biased = add(load_of(values, i, columns), load_of(bias, i, columns));
        store_of(values, i, columns, add(biased, load_of(residual, i, columns)));
    }
}

void gelu_row(std::size_t columns, const float* bias, float* values, float* activated) {
    for (std::size_t i = 0; i < columns; i += lane_count) {
        const Lanes x = add(load_of(values, i, columns), load_of(bias, i, columns));
        store_of(values, i, columns, x);
        store_of(activated, i, columns, multiply(x, gelu_gate(x).value));
    }
}

/// gelu' = s + x s (1 - s) (2u)', s = sigmoid(2u).
void gelu_backward_row(std::size_t columns, const float* values, float* gradient,
                       float* activated) {
    for (std::size_t i = 0; i < columns; i += lane_count) {
        const Lanes x = load_of(values, i, columns);
        const SigmoidPair s = gelu_gate(x);
        const Lanes gelu = multiply(x, s.value);
        const Lanes rise = fma(multiply(x, x), broadcast(3.0f * cubic), broadcast(slope));
        const Lanes bend = multiply(gelu, s.complement);
        store_of(activated, i, columns, gelu);
        store_of(gradient, i, columns,
                 multiply(load_of(gradient, i, columns), fma(bend, rise, s.value)));
    }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace spillway::engine
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::engine {
namespace {

/// Calls row(offset of its first element in the block).
template <typename Row>
void over_rows(const ResultBlock& block, std::size_t stride, const Row& row) {
    for (std::size_t i = 0; i < block.rows; ++i)
        row((block.first_row + i) * stride + block.first_column);
}

}  // namespace

void add_bias(cpu_optim::Isa isa, const ResultBlock& block, std::size_t stride, const float* bias,
              float* values) {
    const auto kernel = SPILLWAY_KERNEL(isa, bias_row);
    over_rows(block, stride, [&](std::size_t at) {
        kernel(block.columns, bias + block.first_column, values + at);
    });
}

void add_bias_and_residual(cpu_optim::Isa isa, const ResultBlock& block, std::size_t stride,
                           const float* bias, const float* residual, float* values) {
    const auto kernel = SPILLWAY_KERNEL(isa, residual_row);
    over_rows(block, stride, [&](std::size_t at) {
        kernel(block.columns, bias + block.first_column, residual + at, values + at);
    });
}

void add_bias_and_gelu(cpu_optim::Isa isa, const ResultBlock& block, std::size_t stride,
                       const float* bias, float* values, float* activated) {
    const auto kernel = SPILLWAY_KERNEL(isa, gelu_row);
    over_rows(block, stride, [&](std::size_t at) {
        kernel(block.columns, bias + block.first_column, values + at, activated + at);
    });
}

void gelu_backward(cpu_optim::Isa isa, const ResultBlock& block, std::size_t stride,
                   const float* values, float* gradient, float* activated) {
    const auto kernel = SPILLWAY_KERNEL(isa, gelu_backward_row);
    over_rows(block, stride, [&](std::size_t at) {
        kernel(block.columns, values + at, gradient + at, activated + at);
    });
}

}  // namespace spillway::engine
#endif  // HWY_ONCE
