// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include "cuda/kernels/attention_parameters.h"
#include "cuda/kernels/rows.cuh"

namespace spillway::cuda {

/// The row of a block: blocks go over heads, then tokens.
struct AttentionRow {
    std::size_t head, token, position, first_token;

    __device__ __forceinline__ explicit AttentionRow(const AttentionHeads& shape)
        : head(blockIdx.x % shape.heads),
          token(blockIdx.x / shape.heads),
          position(token % shape.sequence_tokens),
          first_token(token - position) {}
};

enum class Part { query, key, value };

/// Where a head's part of a token begins in qkv, or in its gradient.
__device__ __forceinline__ std::size_t qkv_at(const AttentionHeads& shape, std::size_t token,
                                              Part part, std::size_t head) {
    return (token * 3 + static_cast<std::size_t>(part)) * shape.hidden() + head * shape.head_size;
}
__device__ __forceinline__ std::size_t head_at(const AttentionHeads& shape, std::size_t token,
                                               std::size_t head) {
    return token * shape.hidden() + head * shape.head_size;
}
__device__ __forceinline__ float score_scale(const AttentionHeads& shape) {
    return 1.0F / sqrtf(static_cast<float>(shape.head_size));
}

}  // namespace spillway::cuda

extern "C" __global__ void spillway_attention(spillway::cuda::Attention p) {
    using namespace spillway::cuda;
    SPILLWAY_DYNAMIC_SHARED(float, scores);
    const AttentionRow row(p.shape);
    const float* const query = p.qkv + qkv_at(p.shape, row.token, Part::query, row.head);
    const float scale = score_scale(p.shape);
    float own_largest = -INFINITY;
    for (std::size_t j = threadIdx.x; j <= row.position; j += row_threads) {
        const float* const key = p.qkv + qkv_at(p.shape, row.first_token + j, Part::key, row.head);
        scores[j] = dot(query, key, p.shape.head_size) * scale;
        own_largest = Largest()(own_largest, scores[j]);
    }
    const float largest = over_block(own_largest, Largest());
    float own_sum = 0;
    for (std::size_t j = threadIdx.x; j <= row.position; j += row_threads) {
        scores[j] = expf(scores[j] - largest);
        own_sum += scores[j];
    }
    const float inverse_sum = 1.0F / over_block(own_sum, Sum());
    float* const output = p.output + head_at(p.shape, row.token, row.head);
    for (std::size_t d = threadIdx.x; d < p.shape.head_size; d += row_threads) {
        float sum = 0;
        for (std::size_t j = 0; j <= row.position; ++j)
            sum = fmaf(scores[j] * inverse_sum,
                       p.qkv[qkv_at(p.shape, row.first_token + j, Part::value, row.head) + d], sum);
        output[d] = sum;
    }
    if (threadIdx.x == 0)
        p.statistics[row.token * p.shape.heads + row.head] = {largest, inverse_sum};
}

extern "C" __global__ void spillway_attention_query_gradient(
    spillway::cuda::AttentionQueryGradient p) {
    using namespace spillway::cuda;
    SPILLWAY_DYNAMIC_SHARED(float, slopes);
    const AttentionRow row(p.shape);
    const float* const query = p.qkv + qkv_at(p.shape, row.token, Part::query, row.head);
    const float* const gradient = p.gradient + head_at(p.shape, row.token, row.head);
    const float* const output = p.output + head_at(p.shape, row.token, row.head);
    const SoftmaxRow statistics = p.statistics[row.token * p.shape.heads + row.head];
    const float scale = score_scale(p.shape);
    const float projection = dot(gradient, output, p.shape.head_size);
    for (std::size_t j = threadIdx.x; j <= row.position; j += row_threads) {
        const std::size_t token = row.first_token + j;
        const float* const key = p.qkv + qkv_at(p.shape, token, Part::key, row.head);
        const float* const value = p.qkv + qkv_at(p.shape, token, Part::value, row.head);
        const float score = dot(query, key, p.shape.head_size) * scale;
        const float probability = expf(score - statistics.largest) * statistics.inverse_sum;
        slopes[j] = probability * (dot(gradient, value, p.shape.head_size) - projection) * scale;
    }
    __syncthreads();
    float* const to = p.qkv_gradient + qkv_at(p.shape, row.token, Part::query, row.head);
    for (std::size_t d = threadIdx.x; d < p.shape.head_size; d += row_threads) {
        float sum = 0;
        for (std::size_t j = 0; j <= row.position; ++j)
            sum = fmaf(slopes[j],
                       p.qkv[qkv_at(p.shape, row.first_token + j, Part::key, row.head) + d], sum);
        to[d] = sum;
    }
    if (threadIdx.x == 0)
        p.projections[row.token * p.shape.heads + row.head] = projection;
}

/// The queries behind a key, in order.
extern "C" __global__ void spillway_attention_key_gradients(
    spillway::cuda::AttentionKeyGradients p) {
    using namespace spillway::cuda;
    SPILLWAY_DYNAMIC_SHARED(float, probabilities);
    float* const slopes = probabilities + p.shape.sequence_tokens;
    const AttentionRow row(p.shape);
    const float* const key = p.qkv + qkv_at(p.shape, row.token, Part::key, row.head);
    const float* const value = p.qkv + qkv_at(p.shape, row.token, Part::value, row.head);
    const float scale = score_scale(p.shape);
    for (std::size_t q = row.position + threadIdx.x; q < p.shape.sequence_tokens;
         q += row_threads) {
        const std::size_t token = row.first_token + q;
        const float* const query = p.qkv + qkv_at(p.shape, token, Part::query, row.head);
        const float* const gradient = p.gradient + head_at(p.shape, token, row.head);
        const SoftmaxRow statistics = p.statistics[token * p.shape.heads + row.head];
        const float score = dot(query, key, p.shape.head_size) * scale;
        probabilities[q] = expf(score - statistics.largest) * statistics.inverse_sum;
        slopes[q] = probabilities[q] *
                    (dot(gradient, value, p.shape.head_size) -
                     p.projections[token * p.shape.heads + row.head]) *
                    scale;
    }
    __syncthreads();
    float* const key_to = p.qkv_gradient + qkv_at(p.shape, row.token, Part::key, row.head);
    float* const value_to = p.qkv_gradient + qkv_at(p.shape, row.token, Part::value, row.head);
    for (std::size_t d = threadIdx.x; d < p.shape.head_size; d += row_threads) {
        float key_sum = 0;
        float value_sum = 0;
        for (std::size_t q = row.position; q < p.shape.sequence_tokens; ++q) {
            const std::size_t token = row.first_token + q;
            key_sum =
                fmaf(slopes[q], p.qkv[qkv_at(p.shape, token, Part::query, row.head) + d], key_sum);
            value_sum = fmaf(probabilities[q], p.gradient[head_at(p.shape, token, row.head) + d],
                             value_sum);
        }
        key_to[d] = key_sum;
        value_to[d] = value_sum;
    }
}
