// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/compute/host_compute.h"

#include <utility>

#include "engine/compute/epilogue.h"

namespace spillway::engine {
namespace {

class HostCompute final : public Compute {
  public:
    HostCompute(cuda::Stream& stream, ComputePool& pool) : stream_(stream), pool_(pool) {}

    void enqueue(const char* name, std::function<void()> work) override {
        stream_.launch(name, std::move(work));
    }

    void embed(const TokenRows& rows, const TokenIds& tokens, std::size_t features, std::size_t,
               const float* token_table, const float* position_table, float* output) override {
        engine::embed(pool_, rows, tokens, features, token_table, position_table, output);
    }
    void token_table_gradient(const TokenRows& rows, const TokenIds& tokens, std::size_t features,
                              std::size_t vocabulary, const float* gradient,
                              Contribution contribution, float* table_gradient) override {
        engine::token_table_gradient(pool_, rows, tokens, features, vocabulary, gradient,
                                     contribution, table_gradient);
    }
    void position_table_gradient(const TokenRows& rows, std::size_t features, std::size_t positions,
                                 const float* gradient, Contribution contribution,
                                 float* table_gradient) override {
        engine::position_table_gradient(pool_, rows, features, positions, gradient, contribution,
                                        table_gradient);
    }

    void layer_norm(std::size_t tokens, std::size_t features, const float* input,
                    const float* weight, const float* bias, float* output,
                    RowStatistics* statistics) override {
        engine::layer_norm(pool_, tokens, features, input, weight, bias, output, statistics);
    }
    void layer_norm_input_gradient(std::size_t tokens, std::size_t features, const float* input,
                                   const RowStatistics* statistics, const float* weight,
                                   const float* gradient, InputGradient mode,
                                   float* input_gradient) override {
        engine::layer_norm_input_gradient(pool_, tokens, features, input, statistics, weight,
                                          gradient, mode, input_gradient);
    }
    void layer_norm_parameter_gradients(const TokenRows& rows, std::size_t features,
                                        const float* input, const RowStatistics* statistics,
                                        const float* gradient, Contribution contribution,
                                        float* weight_gradient, float* bias_gradient) override {
        engine::layer_norm_parameter_gradients(pool_, rows, features, input, statistics, gradient,
                                               contribution, weight_gradient, bias_gradient);
    }

    void product(const TokenRows& rows, const float* input, const float* weight,
                 const WeightShape& shape, float* result) override {
        engine::product(pool_, rows, input, weight, shape, result);
    }
    void linear(const TokenRows& rows, const float* input, const Linear& layer,
                float* result) override {
        engine::product(pool_, rows, input, layer.weight, layer.shape, result,
                        [&](const ResultBlock& block) {
                            add_bias(pool_.isa(), block, layer.shape.outputs, layer.bias, result);
                        });
    }
    void linear_and_residual(const TokenRows& rows, const float* input, const Linear& layer,
                             const float* residual, float* result) override {
        engine::product(pool_, rows, input, layer.weight, layer.shape, result,
                        [&](const ResultBlock& block) {
                            add_bias_and_residual(pool_.isa(), block, layer.shape.outputs,
                                                  layer.bias, residual, result);
                        });
    }
    void linear_and_gelu(const TokenRows& rows, const float* input, const Linear& layer,
                         float* values, float* activated) override {
        engine::product(pool_, rows, input, layer.weight, layer.shape, values,
                        [&](const ResultBlock& block) {
                            add_bias_and_gelu(pool_.isa(), block, layer.shape.outputs, layer.bias,
                                              values, activated);
                        });
    }
    void product_input_gradient(const TokenRows& rows, const float* gradient, const float* weight,
                                const WeightShape& shape, float* input_gradient) override {
        engine::product_input_gradient(pool_, rows, gradient, weight, shape, input_gradient);
    }
    void product_and_gelu_gradient(const TokenRows& rows, const float* gradient,
                                   const float* weight, const WeightShape& shape,
                                   const float* values, float* values_gradient,
                                   float* activated) override {
        engine::product_input_gradient(
            pool_, rows, gradient, weight, shape, values_gradient, [&](const ResultBlock& block) {
                gelu_backward(pool_.isa(), block, shape.inputs, values, values_gradient, activated);
            });
    }
    void linear_gradients(const TokenRows& rows, const float* gradient, const float* input,
                          const WeightShape& shape, Contribution contribution,
                          float* weight_gradient, float* bias_gradient) override {
        engine::product_weight_gradient(pool_, rows, gradient, input, shape, contribution,
                                        weight_gradient);
        engine::bias_gradient(pool_, rows, shape.outputs, gradient, contribution, bias_gradient);
    }
    void product_weight_gradient(const TokenRows& rows, const float* gradient, const float* input,
                                 const WeightShape& shape, Contribution contribution,
                                 float* weight_gradient) override {
        engine::product_weight_gradient(pool_, rows, gradient, input, shape, contribution,
                                        weight_gradient);
    }

    void attention(const AttentionShape& shape, const float* qkv, float* scratch, float* output,
                   SoftmaxStatistics* statistics) override {
        engine::attention(pool_, shape, qkv, scratch, output, statistics);
    }
    void attention_backward(const AttentionShape& shape, const float* qkv, const float* output,
                            const SoftmaxStatistics* statistics, const float* gradient,
                            float* scratch, float* qkv_gradient) override {
        engine::attention_backward(pool_, shape, qkv, output, statistics, gradient, scratch,
                                   qkv_gradient);
    }

    void cross_entropy(const LogitsRows& logits, const TokenRows& rows, const TokenIds& tokens,
                       LogitsGradient gradient, float scale, double* token_losses) override {
        pool_.for_each(logits.rows, [&](std::size_t i) {
            const std::size_t row = logits.first_row + i;
            const std::size_t next = row % rows.sequence_tokens + 1;
            const auto target = static_cast<std::size_t>(
                tokens.ids[row / rows.sequence_tokens * tokens.stride + next]);
            token_losses[row] =
                engine::cross_entropy(pool_.isa(), logits.logits + i * logits.vocabulary,
                                      logits.vocabulary, target, gradient, scale);
        });
    }
    void mean_loss(const double* token_losses, std::size_t tokens, double* mean) override {
        double sum = 0;
        for (std::size_t i = 0; i < tokens; ++i)
            sum += token_losses[i];
        *mean = sum / static_cast<double>(tokens);
    }

  private:
    cuda::Stream& stream_;
    ComputePool& pool_;
};

}  // namespace

std::unique_ptr<Compute> make_host_compute(cuda::Stream& stream, ComputePool& pool) {
    return std::make_unique<HostCompute>(stream, pool);
}

}  // namespace spillway::engine
