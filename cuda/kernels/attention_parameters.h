// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include "cuda/kernels/trainer_parameters.h"

/// Causal attention (Vaswani et al. 2017) by rows: a block of row_threads has one query, or in the
/// last kernel one key, of one head, and keeps the scores of that row in shared memory. Nothing of
/// tokens x tokens is ever stored; the backward pass computes the scores again (as in Dao et al.
/// 2022, arXiv:2205.14135).
namespace spillway::cuda {

struct AttentionHeads {
    std::size_t sequences, sequence_tokens, heads, head_size;

    [[nodiscard]] constexpr std::size_t tokens() const { return sequences * sequence_tokens; }
    [[nodiscard]] constexpr std::size_t hidden() const { return heads * head_size; }
};

/// qkv [tokens, 3 x hidden]: queries, keys, values, each head by head.
struct Attention {
    static constexpr const char* kernel = "spillway_attention";
    AttentionHeads shape;
    const float* qkv;
    float* output;
    SoftmaxRow* statistics;  ///< [tokens, heads]

    template <typename Visitor>
    void for_each_memory(Visitor& visitor) {
        visitor.reads("qkv", qkv, shape.tokens() * 3 * shape.hidden());
        visitor.writes("output", output, shape.tokens() * shape.hidden());
        visitor.writes("statistics", statistics, shape.tokens() * shape.heads);
    }
};

/// The queries' part of qkv_gradient, and projections[token, head] = gradient . output.
struct AttentionQueryGradient {
    static constexpr const char* kernel = "spillway_attention_query_gradient";
    AttentionHeads shape;
    const float* qkv;
    const float* output;
    const SoftmaxRow* statistics;
    const float* gradient;
    float* projections;
    float* qkv_gradient;

    template <typename Visitor>
    void for_each_memory(Visitor& visitor) {
        visitor.reads("qkv", qkv, shape.tokens() * 3 * shape.hidden());
        visitor.reads("output", output, shape.tokens() * shape.hidden());
        visitor.reads("statistics", statistics, shape.tokens() * shape.heads);
        visitor.reads("gradient", gradient, shape.tokens() * shape.hidden());
        visitor.writes("projections", projections, shape.tokens() * shape.heads);
        visitor.writes("qkv_gradient", qkv_gradient, shape.tokens() * 3 * shape.hidden());
    }
};

/// The keys' and values' parts of qkv_gradient.
struct AttentionKeyGradients {
    static constexpr const char* kernel = "spillway_attention_key_gradients";
    AttentionHeads shape;
    const float* qkv;
    const SoftmaxRow* statistics;
    const float* gradient;
    const float* projections;
    float* qkv_gradient;

    template <typename Visitor>
    void for_each_memory(Visitor& visitor) {
        visitor.reads("qkv", qkv, shape.tokens() * 3 * shape.hidden());
        visitor.reads("statistics", statistics, shape.tokens() * shape.heads);
        visitor.reads("gradient", gradient, shape.tokens() * shape.hidden());
        visitor.reads("projections", projections, shape.tokens() * shape.heads);
        visitor.writes("qkv_gradient", qkv_gradient, shape.tokens() * 3 * shape.hidden());
    }
};

}  // namespace spillway::cuda
