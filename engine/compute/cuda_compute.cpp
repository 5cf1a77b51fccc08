// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/compute/cuda_compute.h"

#include <type_traits>

#include "cuda/trainer_kernels.h"

namespace spillway::engine {
namespace {

// The two layers name the same pairs of floats.
static_assert(sizeof(RowStatistics) == sizeof(cuda::NormStatistics) &&
              std::is_standard_layout_v<RowStatistics>);
static_assert(sizeof(SoftmaxStatistics) == sizeof(cuda::SoftmaxRow) &&
              std::is_standard_layout_v<SoftmaxStatistics>);

cuda::NormStatistics* row_of(RowStatistics* statistics) {
    return reinterpret_cast<cuda::NormStatistics*>(statistics);
}
const cuda::NormStatistics* row_of(const RowStatistics* statistics) {
    return reinterpret_cast<const cuda::NormStatistics*>(statistics);
}
const cuda::SoftmaxRow* row_of(const SoftmaxStatistics* statistics) {
    return reinterpret_cast<const cuda::SoftmaxRow*>(statistics);
}

cuda::WeightMatrix matrix_of(const WeightShape& shape) {
    return {.outputs = shape.outputs, .inputs = shape.inputs};
}
cuda::AttentionHeads heads_of(const AttentionShape& shape) {
    return {.sequences = shape.rows.sequences,
            .sequence_tokens = shape.rows.sequence_tokens,
            .heads = shape.heads,
            .head_size = shape.head_size};
}

class CudaCompute final : public Compute {
  public:
    explicit CudaCompute(cuda::KernelStream& kernels) : kernels_(kernels) {}

    void enqueue(const char*, std::function<void()> work) override { work(); }

    void embed(const TokenRows& rows, const TokenIds& tokens, std::size_t features,
               std::size_t vocabulary, const float* token_table, const float* position_table,
               float* output) override {
        cuda::enqueue(kernels_, cuda::Embedding{.sequences = rows.sequences,
                                                .sequence_tokens = rows.sequence_tokens,
                                                .features = features,
                                                .vocabulary = vocabulary,
                                                .ids = tokens.ids,
                                                .id_stride = tokens.stride,
                                                .table = token_table,
                                                .positions = position_table,
                                                .output = output});
    }
    void token_table_gradient(const TokenRows& rows, const TokenIds& tokens, std::size_t features,
                              std::size_t vocabulary, const float* gradient,
                              Contribution contribution, float* table_gradient) override {
        cuda::enqueue(kernels_,
                      cuda::TokenTableGradient{.sequences = rows.sequences,
                                               .sequence_tokens = rows.sequence_tokens,
                                               .features = features,
                                               .vocabulary = vocabulary,
                                               .ids = tokens.ids,
                                               .id_stride = tokens.stride,
                                               .gradient = gradient,
                                               .table_gradient = table_gradient,
                                               .adds = contribution == Contribution::further});
    }
    void position_table_gradient(const TokenRows& rows, std::size_t features, std::size_t positions,
                                 const float* gradient, Contribution contribution,
                                 float* table_gradient) override {
        cuda::enqueue(kernels_,
                      cuda::PositionTableGradient{.sequences = rows.sequences,
                                                  .sequence_tokens = rows.sequence_tokens,
                                                  .features = features,
                                                  .positions = positions,
                                                  .gradient = gradient,
                                                  .table_gradient = table_gradient,
                                                  .adds = contribution == Contribution::further});
    }

    void layer_norm(std::size_t tokens, std::size_t features, const float* input,
                    const float* weight, const float* bias, float* output,
                    RowStatistics* statistics) override {
        cuda::enqueue(kernels_, cuda::LayerNorm{.tokens = tokens,
                                                .features = features,
                                                .input = input,
                                                .weight = weight,
                                                .bias = bias,
                                                .output = output,
                                                .statistics = row_of(statistics)});
    }
    void layer_norm_input_gradient(std::size_t tokens, std::size_t features, const float* input,
                                   const RowStatistics* statistics, const float* weight,
                                   const float* gradient, InputGradient mode,
                                   float* input_gradient) override {
        cuda::enqueue(kernels_,
                      cuda::LayerNormInputGradient{.tokens = tokens,
                                                   .features = features,
                                                   .input = input,
                                                   .statistics = row_of(statistics),
                                                   .weight = weight,
                                                   .gradient = gradient,
                                                   .input_gradient = input_gradient,
                                                   .adds = mode == InputGradient::add_to_residual});
    }
    void layer_norm_parameter_gradients(const TokenRows& rows, std::size_t features,
                                        const float* input, const RowStatistics* statistics,
                                        const float* gradient, Contribution contribution,
                                        float* weight_gradient, float* bias_gradient) override {
        cuda::enqueue(kernels_,
                      cuda::ColumnGradients{.tokens = rows.tokens(),
                                            .features = features,
                                            .input = input,
                                            .statistics = row_of(statistics),
                                            .gradient = gradient,
                                            .weight_gradient = weight_gradient,
                                            .bias_gradient = bias_gradient,
                                            .adds = contribution == Contribution::further});
    }

    void product(const TokenRows& rows, const float* input, const float* weight,
                 const WeightShape& shape, float* result) override {
        cuda::enqueue(kernels_, cuda::forward_product(rows.tokens(), input, weight,
                                                      matrix_of(shape), result));
    }
    void linear(const TokenRows& rows, const float* input, const Linear& layer,
                float* result) override {
        linear_with(rows, input, layer, nullptr, result, nullptr);
    }
    void linear_and_residual(const TokenRows& rows, const float* input, const Linear& layer,
                             const float* residual, float* result) override {
        linear_with(rows, input, layer, residual, result, nullptr);
    }
    void linear_and_gelu(const TokenRows& rows, const float* input, const Linear& layer,
                         float* values, float* activated) override {
        linear_with(rows, input, layer, nullptr, values, activated);
    }
    void product_input_gradient(const TokenRows& rows, const float* gradient, const float* weight,
                                const WeightShape& shape, float* input_gradient) override {
        cuda::enqueue(kernels_, cuda::input_gradient_product(rows.tokens(), gradient, weight,
                                                             matrix_of(shape), input_gradient));
    }
    void product_and_gelu_gradient(const TokenRows& rows, const float* gradient,
                                   const float* weight, const WeightShape& shape,
                                   const float* values, float* values_gradient,
                                   float* activated) override {
        product_input_gradient(rows, gradient, weight, shape, values_gradient);
        cuda::enqueue(kernels_, cuda::GeluBackward{.elements = rows.tokens() * shape.inputs,
                                                   .values = values,
                                                   .gradient = values_gradient,
                                                   .activated = activated});
    }
    void linear_gradients(const TokenRows& rows, const float* gradient, const float* input,
                          const WeightShape& shape, Contribution contribution,
                          float* weight_gradient, float* bias_gradient) override {
        product_weight_gradient(rows, gradient, input, shape, contribution, weight_gradient);
        cuda::enqueue(kernels_,
                      cuda::ColumnGradients{.tokens = rows.tokens(),
                                            .features = shape.outputs,
                                            .input = nullptr,
                                            .statistics = nullptr,
                                            .gradient = gradient,
                                            .weight_gradient = nullptr,
                                            .bias_gradient = bias_gradient,
                                            .adds = contribution == Contribution::further});
    }
    void product_weight_gradient(const TokenRows& rows, const float* gradient, const float* input,
                                 const WeightShape& shape, Contribution contribution,
                                 float* weight_gradient) override {
        cuda::enqueue(kernels_, cuda::weight_gradient_product(
                                    rows.tokens(), gradient, input, matrix_of(shape),
                                    contribution == Contribution::further, weight_gradient));
    }

    void attention(const AttentionShape& shape, const float* qkv, float*, float* output,
                   SoftmaxStatistics* statistics) override {
        cuda::enqueue(kernels_, cuda::Attention{
                                    .shape = heads_of(shape),
                                    .qkv = qkv,
                                    .output = output,
                                    .statistics = reinterpret_cast<cuda::SoftmaxRow*>(statistics)});
    }
    void attention_backward(const AttentionShape& shape, const float* qkv, const float* output,
                            const SoftmaxStatistics* statistics, const float* gradient,
                            float* scratch, float* qkv_gradient) override {
        cuda::enqueue(kernels_, cuda::AttentionQueryGradient{.shape = heads_of(shape),
                                                             .qkv = qkv,
                                                             .output = output,
                                                             .statistics = row_of(statistics),
                                                             .gradient = gradient,
                                                             .projections = scratch,
                                                             .qkv_gradient = qkv_gradient});
        cuda::enqueue(kernels_, cuda::AttentionKeyGradients{.shape = heads_of(shape),
                                                            .qkv = qkv,
                                                            .statistics = row_of(statistics),
                                                            .gradient = gradient,
                                                            .projections = scratch,
                                                            .qkv_gradient = qkv_gradient});
    }

    void cross_entropy(const LogitsRows& logits, const TokenRows& rows, const TokenIds& tokens,
                       LogitsGradient gradient, float scale, double* token_losses) override {
        cuda::enqueue(kernels_,
                      cuda::CrossEntropy{.tokens = logits.rows,
                                         .vocabulary = logits.vocabulary,
                                         .first_row = logits.first_row,
                                         .sequences = rows.sequences,
                                         .sequence_tokens = rows.sequence_tokens,
                                         .ids = tokens.ids,
                                         .id_stride = tokens.stride,
                                         .logits = logits.logits,
                                         .token_losses = token_losses,
                                         .scale = scale,
                                         .replaces = gradient == LogitsGradient::replace_logits});
    }
    void mean_loss(const double* token_losses, std::size_t tokens, double* mean) override {
        cuda::enqueue(kernels_,
                      cuda::MeanLoss{.tokens = tokens, .token_losses = token_losses, .mean = mean});
    }

  private:
    void linear_with(const TokenRows& rows, const float* input, const Linear& layer,
                     const float* residual, float* values, float* activated) {
        product(rows, input, layer.weight, layer.shape, values);
        cuda::enqueue(kernels_, cuda::BiasEpilogue{.tokens = rows.tokens(),
                                                   .features = layer.shape.outputs,
                                                   .bias = layer.bias,
                                                   .residual = residual,
                                                   .values = values,
                                                   .activated = activated});
    }

    cuda::KernelStream& kernels_;
};

}  // namespace

std::unique_ptr<Compute> make_cuda_compute(cuda::KernelStream& kernels) {
    return std::make_unique<CudaCompute>(kernels);
}

}  // namespace spillway::engine
