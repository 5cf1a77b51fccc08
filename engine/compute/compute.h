// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "cuda/device.h"
#include "engine/compute/attention.h"
#include "engine/compute/compute_pool.h"
#include "engine/compute/embedding.h"
#include "engine/compute/layer_norm.h"
#include "engine/compute/product.h"
#include "engine/compute/softmax.h"

namespace spillway::engine {

/// y = x weight^T + bias.
struct Linear {
    const float* weight;
    const float* bias;
    WeightShape shape;
};

/// Rows of logits, of which row i belongs to row first_row + i of a batch.
struct LogitsRows {
    float* logits;
    std::size_t rows, first_row, vocabulary;
};

/// What the passes of a model need of a device: its operations, on device pointers. One of them is
/// made for each kind of device; each gives the same bits for every way of cutting a batch into
/// micro-batches, but two of them differ in rounding. What each operation does stands in the header
/// of its name. Not thread-safe.
class Compute {
  public:
    virtual ~Compute() = default;

    /// Queues `work`, which calls the operations below and nothing else, behind what the stream has
    /// been given. `name` is a literal. The operations may be called from inside alone.
    virtual void enqueue(const char* name, std::function<void()> work) = 0;

    virtual void embed(const TokenRows& rows, const TokenIds& tokens, std::size_t features,
                       std::size_t vocabulary, const float* token_table,
                       const float* position_table, float* output) = 0;
    virtual void token_table_gradient(const TokenRows& rows, const TokenIds& tokens,
                                      std::size_t features, std::size_t vocabulary,
                                      const float* gradient, Contribution contribution,
                                      float* table_gradient) = 0;
    virtual void position_table_gradient(const TokenRows& rows, std::size_t features,
                                         std::size_t positions, const float* gradient,
                                         Contribution contribution, float* table_gradient) = 0;

    virtual void layer_norm(std::size_t tokens, std::size_t features, const float* input,
                            const float* weight, const float* bias, float* output,
                            RowStatistics* statistics) = 0;
    virtual void layer_norm_input_gradient(std::size_t tokens, std::size_t features,
                                           const float* input, const RowStatistics* statistics,
                                           const float* weight, const float* gradient,
                                           InputGradient mode, float* input_gradient) = 0;
    virtual void layer_norm_parameter_gradients(const TokenRows& rows, std::size_t features,
                                                const float* input, const RowStatistics* statistics,
                                                const float* gradient, Contribution contribution,
                                                float* weight_gradient, float* bias_gradient) = 0;

    /// result = input x weight^T.
    virtual void product(const TokenRows& rows, const float* input, const float* weight,
                         const WeightShape& shape, float* result) = 0;
    virtual void linear(const TokenRows& rows, const float* input, const Linear& layer,
                        float* result) = 0;
    /// result = linear + residual.
    virtual void linear_and_residual(const TokenRows& rows, const float* input, const Linear& layer,
                                     const float* residual, float* result) = 0;
    /// values = linear; activated = gelu(values).
    virtual void linear_and_gelu(const TokenRows& rows, const float* input, const Linear& layer,
                                 float* values, float* activated) = 0;
    virtual void product_input_gradient(const TokenRows& rows, const float* gradient,
                                        const float* weight, const WeightShape& shape,
                                        float* input_gradient) = 0;
    /// The same, then through gelu(values), which is computed again into `activated`.
    virtual void product_and_gelu_gradient(const TokenRows& rows, const float* gradient,
                                           const float* weight, const WeightShape& shape,
                                           const float* values, float* values_gradient,
                                           float* activated) = 0;
    /// Of a Linear, weight and bias.
    virtual void linear_gradients(const TokenRows& rows, const float* gradient, const float* input,
                                  const WeightShape& shape, Contribution contribution,
                                  float* weight_gradient, float* bias_gradient) = 0;
    virtual void product_weight_gradient(const TokenRows& rows, const float* gradient,
                                         const float* input, const WeightShape& shape,
                                         Contribution contribution, float* weight_gradient) = 0;

    virtual void attention(const AttentionShape& shape, const float* qkv, float* scratch,
                           float* output, SoftmaxStatistics* statistics) = 0;
    virtual void attention_backward(const AttentionShape& shape, const float* qkv,
                                    const float* output, const SoftmaxStatistics* statistics,
                                    const float* gradient, float* scratch, float* qkv_gradient) = 0;

    /// Of the targets of a batch of `rows`: token_losses[row], and what LogitsGradient says.
    virtual void cross_entropy(const LogitsRows& logits, const TokenRows& rows,
                               const TokenIds& tokens, LogitsGradient gradient, float scale,
                               double* token_losses) = 0;
    /// mean = sum of the losses in order / their number.
    virtual void mean_loss(const double* token_losses, std::size_t tokens, double* mean) = 0;
};

/// For the device that `stream` belongs to: its own kernels where it has some, `pool`'s threads
/// else. Both must outlive it.
[[nodiscard]] std::unique_ptr<Compute> make_compute(cuda::Stream& stream, ComputePool& pool);

}  // namespace spillway::engine
