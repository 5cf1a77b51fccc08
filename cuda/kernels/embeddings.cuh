// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include "cuda/kernels/optimizer.cuh"
#include "cuda/kernels/trainer_parameters.h"

extern "C" __global__ void spillway_embed(spillway::cuda::Embedding p) {
    using namespace spillway::cuda;
    const std::size_t elements = p.sequences * p.sequence_tokens * p.features;
    for (std::size_t i = first_element(); i < elements; i += element_stride()) {
        const std::size_t token = i / p.features;
        const std::size_t feature = i % p.features;
        const std::size_t position = token % p.sequence_tokens;
        const auto id =
            static_cast<std::size_t>(p.ids[token / p.sequence_tokens * p.id_stride + position]);
        p.output[i] =
            p.table[id * p.features + feature] + p.positions[position * p.features + feature];
    }
}

/// A block has one id. Its threads look at as many tokens at once as they are, and only where one
/// of those has the id do they go through them in order, a thread a feature.
extern "C" __global__ void spillway_token_table_gradient(spillway::cuda::TokenTableGradient p) {
    using namespace spillway::cuda;
    __shared__ bool has_id[row_threads];
    const std::size_t tokens = p.sequences * p.sequence_tokens;
    float* const sums = p.table_gradient + std::size_t{blockIdx.x} * p.features;
    if (!p.adds)
        for (std::size_t i = threadIdx.x; i < p.features; i += row_threads)
            sums[i] = 0;
    for (std::size_t first = 0; first < tokens; first += row_threads) {
        const std::size_t token = first + threadIdx.x;
        bool has = false;
        if (token < tokens)
            has = p.ids[token / p.sequence_tokens * p.id_stride + token % p.sequence_tokens] ==
                  static_cast<std::int32_t>(blockIdx.x);
        has_id[threadIdx.x] = has;
        if (__syncthreads_or(has ? 1 : 0) != 0)
            for (unsigned n = 0; n < row_threads; ++n)
                if (has_id[n])
                    for (std::size_t i = threadIdx.x; i < p.features; i += row_threads)
                        sums[i] += p.gradient[(first + n) * p.features + i];
        __syncthreads();
    }
}

extern "C" __global__ void spillway_position_table_gradient(
    spillway::cuda::PositionTableGradient p) {
    using namespace spillway::cuda;
    const std::size_t elements = p.positions * p.features;
    const std::size_t sequence_elements = p.sequence_tokens * p.features;
    for (std::size_t i = first_element(); i < elements; i += element_stride()) {
        float sum = p.adds ? p.table_gradient[i] : 0;
        if (i < sequence_elements)
            for (std::size_t s = 0; s < p.sequences; ++s)
                sum += p.gradient[s * sequence_elements + i];
        p.table_gradient[i] = sum;
    }
}
