// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>

#include "cpu_optim/isa.h"
#include "engine/compute/product.h"

/// What follows a matrix product element by element, on a block of its result. Arrays are those of
/// the whole matrix, `stride` elements a row. Thread-safe for disjoint blocks.
namespace spillway::engine {

/// values += bias.
void add_bias(cpu_optim::Isa isa, const ResultBlock& block, std::size_t stride, const float* bias,
              float* values);

/// values = (values + bias) + residual.
void add_bias_and_residual(cpu_optim::Isa isa, const ResultBlock& block, std::size_t stride,
                           const float* bias, const float* residual, float* values);

/// The tanh form (Hendrycks & Gimpel 2016, arXiv:1606.08415): gelu(x) = x / 2 (1 + tanh u) = x
/// sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3). The second form loses no digits for negative
/// x. values += bias; activated = gelu(values).
void add_bias_and_gelu(cpu_optim::Isa isa, const ResultBlock& block, std::size_t stride,
                       const float* bias, float* values, float* activated);

/// gradient *= gelu'(values); activated = gelu(values), with the bits of the forward pass.
void gelu_backward(cpu_optim::Isa isa, const ResultBlock& block, std::size_t stride,
                   const float* values, float* gradient, float* activated);

}  // namespace spillway::engine
