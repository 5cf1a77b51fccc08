// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/compute/compute_pool.h"
#include "engine/compute/token_rows.h"

/// Token and position embeddings.
namespace spillway::engine {

/// The tokens of a micro-batch; each sequence also holds the target of its last token.
struct TokenIds {
    const std::int32_t* ids = nullptr;  ///< of sequence s from ids + s * stride on
    std::size_t stride = 0;             ///< sequence_tokens + 1
};

/// output[t] = token_table[id of t] + position_table[position of t].
void embed(ComputePool& pool, const TokenRows& rows, const TokenIds& tokens, std::size_t features,
           const float* token_table, const float* position_table, float* output);

/// token_table_gradient [vocabulary, features] = the sum of `gradient` rows of each id, in token
/// order, behind what stands there if it is a further contribution; 0 for ids that never occur.
void token_table_gradient(ComputePool& pool, const TokenRows& rows, const TokenIds& tokens,
                          std::size_t features, std::size_t vocabulary, const float* gradient,
                          Contribution contribution, float* token_table_gradient);

/// position_table_gradient [positions, features] = the sum over sequences, in order, behind what
/// stands there if it is a further contribution; 0 for positions behind the sequences' end.
void position_table_gradient(ComputePool& pool, const TokenRows& rows, std::size_t features,
                             std::size_t positions, const float* gradient,
                             Contribution contribution, float* position_table_gradient);

}  // namespace spillway::engine
