// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>

#include "engine/compute/compute_pool.h"
#include "engine/compute/softmax.h"
#include "engine/compute/token_rows.h"

/// Causal multi-head attention (Vaswani et al. 2017, arXiv:1706.03762) without the tokens x tokens
/// matrix: queries go in blocks, whose scores against the keys before them are the only ones that
/// exist at a time; the backward pass computes them again (as in Dao et al. 2022,
/// arXiv:2205.14135). Keys behind a block are skipped. Scores are scaled by 1 / sqrt(head_size).
namespace spillway::engine {

struct AttentionShape {
    TokenRows rows;
    std::size_t heads = 0;
    std::size_t head_size = 0;

    [[nodiscard]] std::size_t hidden() const noexcept { return heads * head_size; }
};

/// Floats of scratch for a pool of `threads`: proportional to the sequence's length.
[[nodiscard]] std::size_t attention_scratch_elements(const AttentionShape& shape,
                                                     std::size_t threads);

/// qkv [tokens, 3 x hidden]: queries, keys, values, each head by head. output [tokens, hidden];
/// statistics [tokens, heads], kept for the backward pass.
void attention(ComputePool& pool, const AttentionShape& shape, const float* qkv, float* scratch,
               float* output, SoftmaxStatistics* statistics);

/// `gradient` of output; `qkv_gradient` is overwritten.
void attention_backward(ComputePool& pool, const AttentionShape& shape, const float* qkv,
                        const float* output, const SoftmaxStatistics* statistics,
                        const float* gradient, float* scratch, float* qkv_gradient);

}  // namespace spillway::engine
