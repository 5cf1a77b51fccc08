// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include "engine/compute/compute.h"
#include "engine/model/gpt2_activations.h"
#include "engine/model/gpt2_tensors.h"

namespace spillway::engine {

/// One transformer block on one micro-batch:
///   middle = x + projection(attention(qkv(ln_1(x))))      y = middle +
///   down(gelu(up(ln_2(middle))))
/// Called inside Compute::enqueue(): all pointers are device pointers.
struct BlockCompute {
    Compute& compute;
    const Gpt2Config& config;
    TokenRows rows;
    Scratch scratch;

    /// Fills `kept` and `output`.
    void forward(const BlockTensors<const float>& weights, const float* input,
                 const BlockActivations& kept, float* output) const;
    /// Fills `kept` alone, with the same bits.
    void recompute(const BlockTensors<const float>& weights, const float* input,
                   const BlockActivations& kept) const;
    /// `residual_gradient` [tokens, hidden] holds the gradient of the output and becomes that of
    /// the input.
    void backward(const BlockTensors<const float>& weights, const float* input,
                  const BlockActivations& kept, Contribution contribution,
                  const BlockTensors<float>& gradients, float* residual_gradient) const;

  private:
    void attention_part(const BlockTensors<const float>& weights, const float* input,
                        const BlockActivations& kept) const;
    void up_part(const BlockTensors<const float>& weights, const BlockActivations& kept) const;
    void feed_forward_backward(const BlockTensors<const float>& weights,
                               const BlockActivations& kept, Contribution contribution,
                               const BlockTensors<float>& gradients,
                               float* residual_gradient) const;
    void attention_part_backward(const BlockTensors<const float>& weights, const float* input,
                                 const BlockActivations& kept, Contribution contribution,
                                 const BlockTensors<float>& gradients,
                                 float* residual_gradient) const;
    void normalise(const float* input, const float* weight, const float* bias) const;
    /// Through the LayerNorm whose input was `input`, from the gradient in scratch.narrow.
    void norm_backward(const float* input, const float* weight, Contribution contribution,
                       float* weight_gradient, float* bias_gradient,
                       float* residual_gradient) const;

    [[nodiscard]] AttentionShape attention_shape() const;
    [[nodiscard]] WeightShape qkv_shape() const;
    [[nodiscard]] WeightShape projection_shape() const;
    [[nodiscard]] WeightShape up_shape() const;
    [[nodiscard]] WeightShape down_shape() const;
};

}  // namespace spillway::engine
