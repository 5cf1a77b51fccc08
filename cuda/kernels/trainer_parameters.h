// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>

/// The parameters of the trainer's kernels, as parameters.h has those of the optimizer's. Matrices
/// are row-major and dense, weights [outputs, inputs], activations [tokens, features]; a batch is
/// `sequences` runs of `sequence_tokens` rows.
namespace spillway::cuda {

/// Of the threads of a block that share one row. A power of two.
inline constexpr unsigned row_threads = 128;

/// Of a row under LayerNorm.
struct NormStatistics {
    float mean, scale;
};
/// Of a row under softmax: its largest scaled value and 1 / sum(e^(value - largest)).
struct SoftmaxRow {
    float largest, inverse_sum;
};

/// output[t] = table[id of t] + positions[position of t].
struct Embedding {
    static constexpr const char* kernel = "spillway_embed";
    std::size_t sequences, sequence_tokens, features, vocabulary;
    const std::int32_t* ids;
    std::size_t id_stride;
    const float* table;
    const float* positions;
    float* output;

    template <typename Visitor>
    void for_each_memory(Visitor& visitor) {
        visitor.reads("ids", ids, sequences * id_stride);
        visitor.reads("table", table, vocabulary * features);
        visitor.reads("positions", positions, sequence_tokens * features);
        visitor.writes("output", output, sequences * sequence_tokens * features);
    }
};

/// table_gradient[id] = sum of the gradient rows of that id in token order, behind what stands
/// there if it `adds`; a block an id.
struct TokenTableGradient {
    static constexpr const char* kernel = "spillway_token_table_gradient";
    std::size_t sequences, sequence_tokens, features, vocabulary;
    const std::int32_t* ids;
    std::size_t id_stride;
    const float* gradient;
    float* table_gradient;
    bool adds;

    template <typename Visitor>
    void for_each_memory(Visitor& visitor) {
        visitor.reads("ids", ids, sequences * id_stride);
        visitor.reads("gradient", gradient, sequences * sequence_tokens * features);
        visitor.writes("table_gradient", table_gradient, vocabulary * features);
    }
};

/// The sum over sequences in order, behind what stands there if it `adds`; nothing more for
/// positions behind their end.
struct PositionTableGradient {
    static constexpr const char* kernel = "spillway_position_table_gradient";
    std::size_t sequences, sequence_tokens, features, positions;
    const float* gradient;
    float* table_gradient;
    bool adds;

    template <typename Visitor>
    void for_each_memory(Visitor& visitor) {
        visitor.reads("gradient", gradient, sequences * sequence_tokens * features);
        visitor.writes("table_gradient", table_gradient, positions * features);
    }
};

/// A block of row_threads a row.
struct LayerNorm {
    static constexpr const char* kernel = "spillway_layer_norm";
    std::size_t tokens, features;
    const float* input;
    const float* weight;
    const float* bias;
    float* output;
    NormStatistics* statistics;

    template <typename Visitor>
    void for_each_memory(Visitor& visitor) {
        visitor.reads("input", input, tokens * features);
        visitor.reads("weight", weight, features);
        visitor.reads("bias", bias, features);
        visitor.writes("output", output, tokens * features);
        visitor.writes("statistics", statistics, tokens);
    }
};

/// input_gradient (+)= the gradient through a LayerNorm; it may be `gradient` itself. A block of
/// row_threads a row.
struct LayerNormInputGradient {
    static constexpr const char* kernel = "spillway_layer_norm_input_gradient";
    std::size_t tokens, features;
    const float* input;
    const NormStatistics* statistics;
    const float* weight;
    const float* gradient;
    float* input_gradient;
    bool adds;

    template <typename Visitor>
    void for_each_memory(Visitor& visitor) {
        visitor.reads("input", input, tokens * features);
        visitor.reads("statistics", statistics, tokens);
        visitor.reads("weight", weight, features);
        visitor.reads("gradient", gradient, tokens * features);
        visitor.writes("input_gradient", input_gradient, tokens * features);
    }
};

/// bias_gradient (+)= sum over tokens of gradient; weight_gradient, where there is one, the same of
/// gradient (x - mean) scale. One token after the other, so that it does not matter where a step
/// was cut. A thread a feature.
struct ColumnGradients {
    static constexpr const char* kernel = "spillway_column_gradients";
    std::size_t tokens, features;
    const float* input;                ///< null without a weight
    const NormStatistics* statistics;  ///< null without a weight
    const float* gradient;
    float* weight_gradient;  ///< may be null
    float* bias_gradient;
    bool adds;

    template <typename Visitor>
    void for_each_memory(Visitor& visitor) {
        visitor.reads("input", input, tokens * features);
        visitor.reads("statistics", statistics, tokens);
        visitor.reads("gradient", gradient, tokens * features);
        visitor.writes("weight_gradient", weight_gradient, features);
        visitor.writes("bias_gradient", bias_gradient, features);
    }
};

/// result[m, n] (+)= sum over k of a[m, k] b[k, n], each element one chain of fused products in the
/// order of k. Elements of a and b lie `row` and `column` apart. A block of 256 threads computes
/// `edge` x `edge` elements, `blocks_across` of them beside each other.
struct Product {
    static constexpr const char* kernel = "spillway_product";
    static constexpr unsigned edge = 64;
    static constexpr unsigned depth = 16;
    static constexpr unsigned threads = 256;
    std::size_t rows, columns, inner;
    const float* a;
    std::size_t a_row, a_column;
    const float* b;
    std::size_t b_row, b_column;
    float* result;
    bool adds;

    [[nodiscard]] constexpr std::size_t blocks_across() const {
        return (columns + edge - 1) / edge;
    }
    template <typename Visitor>
    void for_each_memory(Visitor& visitor) {
        visitor.reads("a", a, rows * inner);
        visitor.reads("b", b, inner * columns);
        visitor.writes("result", result, rows * columns);
    }
};

/// values += bias; then, where they are given, values += residual or activated = gelu(values).
struct BiasEpilogue {
    static constexpr const char* kernel = "spillway_bias_epilogue";
    std::size_t tokens, features;
    const float* bias;
    const float* residual;  ///< may be null
    float* values;
    float* activated;  ///< may be null

    template <typename Visitor>
    void for_each_memory(Visitor& visitor) {
        visitor.reads("bias", bias, features);
        visitor.reads("residual", residual, tokens * features);
        visitor.writes("values", values, tokens * features);
        visitor.writes("activated", activated, tokens * features);
    }
};

/// gradient *= gelu'(values); activated = gelu(values), with the bits of the forward pass.
struct GeluBackward {
    static constexpr const char* kernel = "spillway_gelu_backward";
    std::size_t elements;
    const float* values;
    float* gradient;
    float* activated;

    template <typename Visitor>
    void for_each_memory(Visitor& visitor) {
        visitor.reads("values", values, elements);
        visitor.writes("gradient", gradient, elements);
        visitor.writes("activated", activated, elements);
    }
};

/// token_losses = cross-entropy of each row's target; with `replaces`, logits become the gradient
/// of that times `scale`. Row `first_row` + i of the batch is row i of logits. A block of
/// row_threads a row.
struct CrossEntropy {
    static constexpr const char* kernel = "spillway_cross_entropy";
    std::size_t tokens, vocabulary, first_row, sequences, sequence_tokens;
    const std::int32_t* ids;
    std::size_t id_stride;
    float* logits;
    double* token_losses;  ///< of the batch
    float scale;
    bool replaces;

    template <typename Visitor>
    void for_each_memory(Visitor& visitor) {
        visitor.reads("ids", ids, sequences * id_stride);
        visitor.writes("logits", logits, tokens * vocabulary);
        visitor.writes("token_losses", token_losses, first_row + tokens);
    }
};

/// mean = sum of the losses in order / their number; one thread.
struct MeanLoss {
    static constexpr const char* kernel = "spillway_mean_loss";
    std::size_t tokens;
    const double* token_losses;
    double* mean;

    template <typename Visitor>
    void for_each_memory(Visitor& visitor) {
        visitor.reads("token_losses", token_losses, tokens);
        visitor.writes("mean", mean, 1);
    }
};

}  // namespace spillway::cuda
