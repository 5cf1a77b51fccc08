// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <functional>

#include "engine/compute/compute_pool.h"
#include "engine/compute/token_rows.h"

/// Matrix products on a fixed grid: blocks in M, N and K that depend on the weight's shape and the
/// sequence's length only, each one call of a single-threaded BLAS, run in parallel.
namespace spillway::engine {

/// [outputs, inputs], row-major, dense.
struct WeightShape {
    std::size_t outputs = 0;
    std::size_t inputs = 0;
};

/// A block of a product's result; called right after it is complete, while it is in the cache.
struct ResultBlock {
    std::size_t first_row, rows, first_column, columns;
};
using BlockEpilogue = std::function<void(const ResultBlock&)>;

/// result = input x weight^T; input [tokens, inputs], result [tokens, outputs].
void product(ComputePool& pool, const TokenRows& rows, const float* input, const float* weight,
             const WeightShape& shape, float* result, const BlockEpilogue& epilogue = {});

/// input_gradient = gradient x weight; gradient [tokens, outputs], input_gradient [tokens, inputs].
void product_input_gradient(ComputePool& pool, const TokenRows& rows, const float* gradient,
                            const float* weight, const WeightShape& shape, float* input_gradient,
                            const BlockEpilogue& epilogue = {});

/// weight_gradient (+)= gradient^T x input, token block by token block.
void product_weight_gradient(ComputePool& pool, const TokenRows& rows, const float* gradient,
                             const float* input, const WeightShape& shape,
                             Contribution contribution, float* weight_gradient);

}  // namespace spillway::engine
