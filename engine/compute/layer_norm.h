// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>

#include "engine/compute/compute_pool.h"
#include "engine/compute/token_rows.h"

/// LayerNorm (Ba et al. 2016, arXiv:1607.06450) over rows of `features` elements, epsilon 1e-5 as
/// in GPT-2: y = (x - mean) * scale * weight + bias, scale = 1 / sqrt(variance + epsilon).
namespace spillway::engine {

/// Of one row; the backward pass needs them.
struct RowStatistics {
    float mean, scale;
};

/// output [tokens, features]; statistics [tokens].
void layer_norm(ComputePool& pool, std::size_t tokens, std::size_t features, const float* input,
                const float* weight, const float* bias, float* output, RowStatistics* statistics);

/// Where the gradient of a LayerNorm's input goes.
enum class InputGradient {
    replace,          ///< stored; `input_gradient` may be `gradient` itself
    add_to_residual,  ///< added to what stands there, the gradient of the residual stream
};

void layer_norm_input_gradient(ComputePool& pool, std::size_t tokens, std::size_t features,
                               const float* input, const RowStatistics* statistics,
                               const float* weight, const float* gradient, InputGradient mode,
                               float* input_gradient);

/// weight_gradient (+)= sum over tokens of gradient * (x - mean) * scale; bias_gradient (+)= that
/// of gradient; token block by token block.
void layer_norm_parameter_gradients(ComputePool& pool, const TokenRows& rows, std::size_t features,
                                    const float* input, const RowStatistics* statistics,
                                    const float* gradient, Contribution contribution,
                                    float* weight_gradient, float* bias_gradient);

/// bias_gradient (+)= sum over tokens of gradient [tokens, features], token block by token block:
/// what a bias added to every row gets.
void bias_gradient(ComputePool& pool, const TokenRows& rows, std::size_t features,
                   const float* gradient, Contribution contribution, float* bias_gradient);

}  // namespace spillway::engine
