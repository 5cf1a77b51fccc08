// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include "cuda/kernels/trainer_parameters.h"

// What the threads of a block do together on one row. Sums have one shape: thread t adds up the
// elements t, t + row_threads, ... in order, and the threads are added pairwise.
namespace spillway::cuda {

struct Sum {
    __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};
/// NaN if either is one.
struct Largest {
    __device__ __forceinline__ float operator()(float a, float b) const {
        return a != a || a > b ? a : b;
    }
};

/// The values of all row_threads threads as one, known to each of them.
template <typename Combine>
__device__ __forceinline__ float over_block(float value, const Combine& combine) {
    __shared__ float values[row_threads];
    const unsigned t = threadIdx.x;
    values[t] = value;
    __syncthreads();
    for (unsigned half = row_threads / 2; half > 0; half /= 2) {
        if (t < half)
            values[t] = combine(values[t], values[t + half]);
        __syncthreads();
    }
    const float all = values[0];
    // Nobody writes the next row's values before everybody has read this one's.
    __syncthreads();
    return all;
}

__device__ __forceinline__ float dot(const float* a, const float* b, std::size_t count) {
    float sum = 0;
    for (std::size_t i = 0; i < count; ++i)
        sum = fmaf(a[i], b[i], sum);
    return sum;
}

}  // namespace spillway::cuda

extern "C" __global__ void spillway_layer_norm(spillway::cuda::LayerNorm p) {
    using namespace spillway::cuda;
    constexpr float epsilon = 1e-5F;
    const std::size_t row = blockIdx.x;
    const float* const input = p.input + row * p.features;
    const float count = static_cast<float>(p.features);
    float sum = 0;
    for (std::size_t i = threadIdx.x; i < p.features; i += row_threads)
        sum += input[i];
    const float mean = over_block(sum, Sum()) / count;
    float squares = 0;
    for (std::size_t i = threadIdx.x; i < p.features; i += row_threads)
        squares = fmaf(input[i] - mean, input[i] - mean, squares);
    const float scale = 1.0F / sqrtf(over_block(squares, Sum()) / count + epsilon);
    for (std::size_t i = threadIdx.x; i < p.features; i += row_threads)
        p.output[row * p.features + i] = fmaf((input[i] - mean) * scale, p.weight[i], p.bias[i]);
    if (threadIdx.x == 0)
        p.statistics[row] = {mean, scale};
}

extern "C" __global__ void spillway_layer_norm_input_gradient(
    spillway::cuda::LayerNormInputGradient p) {
    using namespace spillway::cuda;
    const std::size_t row = blockIdx.x;
    const float* const input = p.input + row * p.features;
    const float* const gradient = p.gradient + row * p.features;
    float* const to = p.input_gradient + row * p.features;
    const NormStatistics statistics = p.statistics[row];
    float sum = 0;
    float projected = 0;
    for (std::size_t i = threadIdx.x; i < p.features; i += row_threads) {
        const float weighted = gradient[i] * p.weight[i];
        sum += weighted;
        projected = fmaf(weighted, (input[i] - statistics.mean) * statistics.scale, projected);
    }
    const float count = static_cast<float>(p.features);
    const float mean = over_block(sum, Sum()) / count;
    const float projection = over_block(projected, Sum()) / count;
    for (std::size_t i = threadIdx.x; i < p.features; i += row_threads) {
        const float normal = (input[i] - statistics.mean) * statistics.scale;
        const float centred = gradient[i] * p.weight[i] - mean - normal * projection;
        to[i] = p.adds ? fmaf(centred, statistics.scale, to[i]) : centred * statistics.scale;
    }
}

extern "C" __global__ void spillway_column_gradients(spillway::cuda::ColumnGradients p) {
    const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (i >= p.features)
        return;
    const bool has_weight = p.weight_gradient != nullptr;
    float bias = p.adds ? p.bias_gradient[i] : 0.0F;
    float weight = p.adds && has_weight ? p.weight_gradient[i] : 0.0F;
    for (std::size_t row = 0; row < p.tokens; ++row) {
        const float gradient = p.gradient[row * p.features + i];
        bias += gradient;
        if (has_weight) {
            const spillway::cuda::NormStatistics statistics = p.statistics[row];
            const float centred = p.input[row * p.features + i] - statistics.mean;
            weight = fmaf(gradient, centred * statistics.scale, weight);
        }
    }
    p.bias_gradient[i] = bias;
    if (has_weight)
        p.weight_gradient[i] = weight;
}

extern "C" __global__ void spillway_cross_entropy(spillway::cuda::CrossEntropy p) {
    using namespace spillway::cuda;
    const std::size_t row = p.first_row + blockIdx.x;
    float* const logits = p.logits + std::size_t{blockIdx.x} * p.vocabulary;
    const std::size_t next = row % p.sequence_tokens + 1;
    const std::int32_t target = p.ids[row / p.sequence_tokens * p.id_stride + next];
    float own_largest = logits[0];
    for (std::size_t i = threadIdx.x; i < p.vocabulary; i += row_threads)
        own_largest = Largest()(own_largest, logits[i]);
    const float largest = over_block(own_largest, Largest());
    float own_sum = 0;
    for (std::size_t i = threadIdx.x; i < p.vocabulary; i += row_threads)
        own_sum += expf(logits[i] - largest);
    const float sum = over_block(own_sum, Sum());
    if (threadIdx.x == 0)
        p.token_losses[row] = static_cast<double>(largest) + log(static_cast<double>(sum)) -
                              static_cast<double>(logits[target]);
    if (!p.replaces)
        return;
    // Before the target's logit is written over, it has been read.
    __syncthreads();
    const float factor = p.scale / sum;
    for (std::size_t i = threadIdx.x; i < p.vocabulary; i += row_threads) {
        const float gradient = expf(logits[i] - largest) * factor;
        logits[i] = i == static_cast<std::size_t>(target) ? gradient - p.scale : gradient;
    }
}

extern "C" __global__ void spillway_mean_loss(spillway::cuda::MeanLoss p) {
    double sum = 0;
    for (std::size_t i = 0; i < p.tokens; ++i)
        sum += p.token_losses[i];
    *p.mean = sum / static_cast<double>(p.tokens);
}
