// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/model/gpt2_block.h"

namespace spillway::engine {

AttentionShape BlockCompute::attention_shape() const {
    return {rows, config.heads, config.head_size()};
}
WeightShape BlockCompute::qkv_shape() const {
    return {std::size_t{3} * config.hidden, config.hidden};
}
WeightShape BlockCompute::projection_shape() const {
    return {config.hidden, config.hidden};
}
WeightShape BlockCompute::up_shape() const {
    return {config.feed_forward, config.hidden};
}
WeightShape BlockCompute::down_shape() const {
    return {config.hidden, config.feed_forward};
}

void BlockCompute::normalise(const float* input, const float* weight, const float* bias) const {
    compute.layer_norm(rows.tokens(), config.hidden, input, weight, bias, scratch.normal,
                       scratch.statistics);
}

void BlockCompute::attention_part(const BlockTensors<const float>& weights, const float* input,
                                  const BlockActivations& kept) const {
    normalise(input, weights.ln_1_weight, weights.ln_1_bias);
    compute.linear(rows, scratch.normal, {weights.qkv_weight, weights.qkv_bias, qkv_shape()},
                   kept.qkv);
    compute.attention(attention_shape(), kept.qkv, scratch.attention, kept.attended, kept.softmax);
    compute.linear_and_residual(
        rows, kept.attended,
        {weights.projection_weight, weights.projection_bias, projection_shape()}, input,
        kept.middle);
}

void BlockCompute::up_part(const BlockTensors<const float>& weights,
                           const BlockActivations& kept) const {
    normalise(kept.middle, weights.ln_2_weight, weights.ln_2_bias);
    compute.linear_and_gelu(rows, scratch.normal, {weights.up_weight, weights.up_bias, up_shape()},
                            kept.up, scratch.activated);
}

void BlockCompute::forward(const BlockTensors<const float>& weights, const float* input,
                           const BlockActivations& kept, float* output) const {
    recompute(weights, input, kept);
    compute.linear_and_residual(rows, scratch.activated,
                                {weights.down_weight, weights.down_bias, down_shape()}, kept.middle,
                                output);
}

void BlockCompute::recompute(const BlockTensors<const float>& weights, const float* input,
                             const BlockActivations& kept) const {
    attention_part(weights, input, kept);
    up_part(weights, kept);
}

void BlockCompute::backward(const BlockTensors<const float>& weights, const float* input,
                            const BlockActivations& kept, Contribution contribution,
                            const BlockTensors<float>& gradients, float* residual_gradient) const {
    feed_forward_backward(weights, kept, contribution, gradients, residual_gradient);
    attention_part_backward(weights, input, kept, contribution, gradients, residual_gradient);
}

void BlockCompute::norm_backward(const float* input, const float* weight, Contribution contribution,
                                 float* weight_gradient, float* bias_gradient,
                                 float* residual_gradient) const {
    compute.layer_norm_parameter_gradients(rows, config.hidden, input, scratch.statistics,
                                           scratch.narrow, contribution, weight_gradient,
                                           bias_gradient);
    compute.layer_norm_input_gradient(rows.tokens(), config.hidden, input, scratch.statistics,
                                      weight, scratch.narrow, InputGradient::add_to_residual,
                                      residual_gradient);
}

void BlockCompute::feed_forward_backward(const BlockTensors<const float>& weights,
                                         const BlockActivations& kept, Contribution contribution,
                                         const BlockTensors<float>& gradients,
                                         float* residual_gradient) const {
    float* up_gradient = scratch.wide_gradient;
    compute.product_and_gelu_gradient(rows, residual_gradient, weights.down_weight, down_shape(),
                                      kept.up, up_gradient, scratch.activated);
    compute.linear_gradients(rows, residual_gradient, scratch.activated, down_shape(), contribution,
                             gradients.down_weight, gradients.down_bias);
    normalise(kept.middle, weights.ln_2_weight, weights.ln_2_bias);
    compute.linear_gradients(rows, up_gradient, scratch.normal, up_shape(), contribution,
                             gradients.up_weight, gradients.up_bias);
    compute.product_input_gradient(rows, up_gradient, weights.up_weight, up_shape(),
                                   scratch.narrow);
    norm_backward(kept.middle, weights.ln_2_weight, contribution, gradients.ln_2_weight,
                  gradients.ln_2_bias, residual_gradient);
}

void BlockCompute::attention_part_backward(const BlockTensors<const float>& weights,
                                           const float* input, const BlockActivations& kept,
                                           Contribution contribution,
                                           const BlockTensors<float>& gradients,
                                           float* residual_gradient) const {
    float* qkv_gradient = scratch.wide_gradient;
    compute.product_input_gradient(rows, residual_gradient, weights.projection_weight,
                                   projection_shape(), scratch.narrow);
    compute.linear_gradients(rows, residual_gradient, kept.attended, projection_shape(),
                             contribution, gradients.projection_weight, gradients.projection_bias);
    compute.attention_backward(attention_shape(), kept.qkv, kept.attended, kept.softmax,
                               scratch.narrow, scratch.attention, qkv_gradient);
    normalise(input, weights.ln_1_weight, weights.ln_1_bias);
    compute.linear_gradients(rows, qkv_gradient, scratch.normal, qkv_shape(), contribution,
                             gradients.qkv_weight, gradients.qkv_bias);
    compute.product_input_gradient(rows, qkv_gradient, weights.qkv_weight, qkv_shape(),
                                   scratch.narrow);
    norm_backward(input, weights.ln_1_weight, contribution, gradients.ln_1_weight,
                  gradients.ln_1_bias, residual_gradient);
}

}  // namespace spillway::engine
