// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/compute/attention.h"

#include <algorithm>
#include <cmath>

#include <cblas.h>

#include "engine/compute/slots.h"

namespace spillway::engine {
namespace {

/// Queries of a block. Small: a block computes scores up to its last query's key for all its
/// queries.
constexpr std::size_t query_block = 64;

std::size_t query_blocks(const AttentionShape& shape) {
    return (shape.rows.sequence_tokens + query_block - 1) / query_block;
}

/// Rows of one block of scores, and the keys [0, end) that its queries may see.
struct Queries {
    std::size_t first, rows, end;
};

Queries queries_of(const AttentionShape& shape, std::size_t block) {
    const std::size_t first = block * query_block;
    const std::size_t rows = std::min(query_block, shape.rows.sequence_tokens - first);
    return {first, rows, first + rows};
}

/// A matrix of BLAS with its row stride.
struct Operand {
    const float* data;
    std::size_t stride;
};
struct Result {
    float* data;
    std::size_t stride;
    float keep;  ///< 0: overwritten, 1: added to
};

enum class Left { as_is, transposed };
enum class Right { as_is, transposed };

/// result [m, n] (+)= left x right, summed over k.
void multiply(Left left_is, Operand left, Right right_is, Operand right, std::size_t m,
              std::size_t n, std::size_t k, Result result) {
    cblas_sgemm(CblasRowMajor, left_is == Left::as_is ? CblasNoTrans : CblasTrans,
                right_is == Right::as_is ? CblasNoTrans : CblasTrans, static_cast<blasint>(m),
                static_cast<blasint>(n), static_cast<blasint>(k), 1.0f, left.data,
                static_cast<blasint>(left.stride), right.data, static_cast<blasint>(right.stride),
                result.keep, result.data, static_cast<blasint>(result.stride));
}

/// Where one head of one sequence lies in the arrays of all tokens.
class HeadPlace {
  public:
    HeadPlace(const AttentionShape& shape, std::size_t index)
        : shape_(shape),
          head_(index % shape.heads),
          first_token_(index / shape.heads * shape.rows.sequence_tokens) {}

    /// Part 0, 1, 2 of qkv: queries, keys, values.
    [[nodiscard]] std::size_t packed(std::size_t part, std::size_t token) const {
        return (first_token_ + token) * packed_stride() + part * shape_.hidden() +
               head_ * shape_.head_size;
    }
    [[nodiscard]] std::size_t packed_stride() const { return 3 * shape_.hidden(); }
    [[nodiscard]] std::size_t output(std::size_t token) const {
        return (first_token_ + token) * shape_.hidden() + head_ * shape_.head_size;
    }
    [[nodiscard]] std::size_t statistics(std::size_t token) const {
        return (first_token_ + token) * shape_.heads + head_;
    }

  private:
    const AttentionShape& shape_;
    std::size_t head_, first_token_;
};

float score_scale(const AttentionShape& shape) {
    return 1.0f / std::sqrt(static_cast<float>(shape.head_size));
}

ScoreRow score_row(const AttentionShape& shape, const Queries& queries, std::size_t row,
                   float* scores) {
    return {scores + row * queries.end, queries.first + row + 1, queries.end, score_scale(shape)};
}

void query_scores(const AttentionShape& shape, const HeadPlace& place, const Queries& queries,
                  const float* qkv, float* scores) {
    const std::size_t stride = place.packed_stride();
    multiply(Left::as_is, {qkv + place.packed(0, queries.first), stride}, Right::transposed,
             {qkv + place.packed(1, 0), stride}, queries.rows, queries.end, shape.head_size,
             {scores, queries.end, 0.0f});
}

/// A slot's scratch: two blocks of scores.
std::size_t block_elements(const AttentionShape& shape) {
    return query_block * shape.rows.sequence_tokens;
}

struct Backward {
    const AttentionShape& shape;
    cpu_optim::Isa isa;
    const float* qkv;
    const float* output;
    const SoftmaxStatistics* statistics;
    const float* gradient;
    float* qkv_gradient;

    /// From the gradients of probabilities in `gradients` to those of scores.
    void to_score_gradients(const HeadPlace& place, const Queries& queries,
                            const float* probabilities, float* gradients) const {
        for (std::size_t row = 0; row < queries.rows; ++row) {
            const std::size_t at = place.output(queries.first + row);
            // sum(p dp) over the keys equals sum(output * gradient) over the head's features.
            const float projection = dot(isa, output + at, gradient + at, shape.head_size);
            softmax_backward(isa, score_row(shape, queries, row, gradients),
                             probabilities + row * queries.end, projection);
        }
    }

    void run(const HeadPlace& place, const Queries& queries, float keep, float* scores,
             float* gradients) const {
        const std::size_t stride = place.packed_stride();
        const std::size_t size = shape.head_size;
        const std::size_t rows = queries.rows;
        const std::size_t end = queries.end;
        const Operand q{qkv + place.packed(0, queries.first), stride};
        const Operand k{qkv + place.packed(1, 0), stride};
        const Operand v{qkv + place.packed(2, 0), stride};
        const Operand out{gradient + place.output(queries.first), shape.hidden()};
        query_scores(shape, place, queries, qkv, scores);
        for (std::size_t row = 0; row < rows; ++row)
            scores_to_probabilities(isa, score_row(shape, queries, row, scores),
                                    statistics[place.statistics(queries.first + row)]);
        multiply(Left::transposed, {scores, end}, Right::as_is, out, end, size, rows,
                 {qkv_gradient + place.packed(2, 0), stride, keep});
        multiply(Left::as_is, out, Right::transposed, v, rows, end, size, {gradients, end, 0.0f});
        to_score_gradients(place, queries, scores, gradients);
        multiply(Left::transposed, {gradients, end}, Right::as_is, q, end, size, rows,
                 {qkv_gradient + place.packed(1, 0), stride, keep});
        multiply(Left::as_is, {gradients, end}, Right::as_is, k, rows, size, end,
                 {qkv_gradient + place.packed(0, queries.first), stride, 0.0f});
    }
};

}  // namespace

std::size_t attention_scratch_elements(const AttentionShape& shape, std::size_t threads) {
    return 2 * block_elements(shape) * threads;
}

void attention(ComputePool& pool, const AttentionShape& shape, const float* qkv, float* scratch,
               float* output, SoftmaxStatistics* statistics) {
    const std::size_t blocks = query_blocks(shape);
    const std::size_t heads = shape.rows.sequences * shape.heads;
    const cpu_optim::Isa isa = pool.isa();
    for_each_in_slots(pool, heads * blocks, [&](std::size_t task, std::size_t slot) {
        float* scores = scratch + slot * 2 * block_elements(shape);
        const HeadPlace place(shape, task / blocks);
        const Queries queries = queries_of(shape, task % blocks);
        query_scores(shape, place, queries, qkv, scores);
        for (std::size_t row = 0; row < queries.rows; ++row) {
            const ScoreRow score = score_row(shape, queries, row, scores);
            const auto of_row = softmax_statistics(isa, score);
            scores_to_probabilities(isa, score, of_row);
            statistics[place.statistics(queries.first + row)] = of_row;
        }
        multiply(Left::as_is, {scores, queries.end}, Right::as_is,
                 {qkv + place.packed(2, 0), place.packed_stride()}, queries.rows, shape.head_size,
                 queries.end, {output + place.output(queries.first), shape.hidden(), 0.0f});
    });
}

void attention_backward(ComputePool& pool, const AttentionShape& shape, const float* qkv,
                        const float* output, const SoftmaxStatistics* statistics,
                        const float* gradient, float* scratch, float* qkv_gradient) {
    const Backward backward{shape, pool.isa(), qkv, output, statistics, gradient, qkv_gradient};
    const std::size_t blocks = query_blocks(shape);
    const std::size_t heads = shape.rows.sequences * shape.heads;
    for_each_in_slots(pool, heads, [&](std::size_t head, std::size_t slot) {
        float* scores = scratch + slot * 2 * block_elements(shape);
        // From the last block, which writes the gradients of all keys and values, to the first.
        for (std::size_t block = blocks; block-- > 0;)
            backward.run(HeadPlace(shape, head), queries_of(shape, block),
                         block + 1 == blocks ? 0.0f : 1.0f, scores, scores + block_elements(shape));
    });
}

}  // namespace spillway::engine
