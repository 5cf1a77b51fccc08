// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/model/gpt2_block.h"

#include "engine/compute/epilogue.h"

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
    layer_norm(pool, rows.tokens(), config.hidden, input, weight, bias, scratch.normal,
               scratch.statistics);
}

void BlockCompute::attention_part(const BlockTensors<const float>& weights, const float* input,
                                  const BlockActivations& kept) const {
    const auto isa = pool.isa();
    const std::size_t hidden = config.hidden;
    normalise(input, weights.ln_1_weight, weights.ln_1_bias);
    product(pool, rows, scratch.normal, weights.qkv_weight, qkv_shape(), kept.qkv,
            [&](const ResultBlock& block) {
                add_bias(isa, block, 3 * hidden, weights.qkv_bias, kept.qkv);
            });
    attention(pool, attention_shape(), kept.qkv, scratch.attention, kept.attended, kept.softmax);
    product(pool, rows, kept.attended, weights.projection_weight, projection_shape(), kept.middle,
            [&](const ResultBlock& block) {
                add_bias_and_residual(isa, block, hidden, weights.projection_bias, input,
                                      kept.middle);
            });
}

void BlockCompute::up_part(const BlockTensors<const float>& weights,
                           const BlockActivations& kept) const {
    normalise(kept.middle, weights.ln_2_weight, weights.ln_2_bias);
    product(pool, rows, scratch.normal, weights.up_weight, up_shape(), kept.up,
            [&](const ResultBlock& block) {
                add_bias_and_gelu(pool.isa(), block, config.feed_forward, weights.up_bias, kept.up,
                                  scratch.activated);
            });
}

void BlockCompute::forward(const BlockTensors<const float>& weights, const float* input,
                           const BlockActivations& kept, float* output) const {
    recompute(weights, input, kept);
    product(pool, rows, scratch.activated, weights.down_weight, down_shape(), output,
            [&](const ResultBlock& block) {
                add_bias_and_residual(pool.isa(), block, config.hidden, weights.down_bias,
                                      kept.middle, output);
            });
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

void BlockCompute::linear_gradients(const float* gradient, const float* input,
                                    const WeightShape& shape, Contribution contribution,
                                    float* weight_gradient, float* bias_gradient) const {
    product_weight_gradient(pool, rows, gradient, input, shape, contribution, weight_gradient);
    engine::bias_gradient(pool, rows, shape.outputs, gradient, contribution, bias_gradient);
}

void BlockCompute::norm_backward(const float* input, const float* weight, Contribution contribution,
                                 float* weight_gradient, float* bias_gradient,
                                 float* residual_gradient) const {
    layer_norm_parameter_gradients(pool, rows, config.hidden, input, scratch.statistics,
                                   scratch.narrow, contribution, weight_gradient, bias_gradient);
    layer_norm_input_gradient(pool, rows.tokens(), config.hidden, input, scratch.statistics, weight,
                              scratch.narrow, InputGradient::add_to_residual, residual_gradient);
}

void BlockCompute::feed_forward_backward(const BlockTensors<const float>& weights,
                                         const BlockActivations& kept, Contribution contribution,
                                         const BlockTensors<float>& gradients,
                                         float* residual_gradient) const {
    float* up_gradient = scratch.wide_gradient;
    product_input_gradient(pool, rows, residual_gradient, weights.down_weight, down_shape(),
                           up_gradient, [&](const ResultBlock& block) {
                               gelu_backward(pool.isa(), block, config.feed_forward, kept.up,
                                             up_gradient, scratch.activated);
                           });
    linear_gradients(residual_gradient, scratch.activated, down_shape(), contribution,
                     gradients.down_weight, gradients.down_bias);
    normalise(kept.middle, weights.ln_2_weight, weights.ln_2_bias);
    linear_gradients(up_gradient, scratch.normal, up_shape(), contribution, gradients.up_weight,
                     gradients.up_bias);
    product_input_gradient(pool, rows, up_gradient, weights.up_weight, up_shape(), scratch.narrow);
    norm_backward(kept.middle, weights.ln_2_weight, contribution, gradients.ln_2_weight,
                  gradients.ln_2_bias, residual_gradient);
}

void BlockCompute::attention_part_backward(const BlockTensors<const float>& weights,
                                           const float* input, const BlockActivations& kept,
                                           Contribution contribution,
                                           const BlockTensors<float>& gradients,
                                           float* residual_gradient) const {
    float* qkv_gradient = scratch.wide_gradient;
    product_input_gradient(pool, rows, residual_gradient, weights.projection_weight,
                           projection_shape(), scratch.narrow);
    linear_gradients(residual_gradient, kept.attended, projection_shape(), contribution,
                     gradients.projection_weight, gradients.projection_bias);
    attention_backward(pool, attention_shape(), kept.qkv, kept.attended, kept.softmax,
                       scratch.narrow, scratch.attention, qkv_gradient);
    normalise(input, weights.ln_1_weight, weights.ln_1_bias);
    linear_gradients(qkv_gradient, scratch.normal, qkv_shape(), contribution, gradients.qkv_weight,
                     gradients.qkv_bias);
    product_input_gradient(pool, rows, qkv_gradient, weights.qkv_weight, qkv_shape(),
                           scratch.narrow);
    norm_backward(input, weights.ln_1_weight, contribution, gradients.ln_1_weight,
                  gradients.ln_1_bias, residual_gradient);
}

}  // namespace spillway::engine
