// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include "cuda/kernels/optimizer.cuh"

/// Sixteen threads, half a warp, are the sixteen lanes of cpu_optim's shape: element i of a tile is
/// added to lane i % 16 in double, one after the other; then the lanes pairwise.
extern "C" __global__ void spillway_scan_gradient(spillway::cuda::GradientScans p) {
    using namespace spillway::cuda;
    constexpr unsigned lanes = GradientScans::threads_a_tile;
    const unsigned lane = threadIdx.x % lanes;
    const std::size_t tiles_a_block = blockDim.x / lanes;
    const std::size_t tile = blockIdx.x * tiles_a_block + threadIdx.x / lanes;
    // Threads behind the last tile stay: their warp exchanges values.
    const std::size_t begin = tile * p.tile_elements;
    const std::size_t behind = begin + p.tile_elements;
    const std::size_t end = behind < p.elements ? behind : p.elements;

    double sum = 0;
    unsigned long long nonfinite = 0;
    for (std::size_t i = begin + lane; i < end; i += lanes) {
        const float value = gradient_at(p.gradient, p.type, i);
        const double x = static_cast<double>(value);
        sum += x * x;
        nonfinite += is_finite(value) ? 0u : 1u;
    }
    for (unsigned half = lanes / 2; half > 0; half /= 2) {
        sum += __shfl_down_sync(0xFFFFFFFFu, sum, half, lanes);
        nonfinite += __shfl_down_sync(0xFFFFFFFFu, nonfinite, half, lanes);
    }
    if (lane == 0 && tile < p.tiles()) {
        p.sums[tile] = sum != sum ? __longlong_as_double(0x7FF8000000000000) : sum;
        p.nonfinite[tile] = nonfinite;
    }
}

extern "C" __global__ void spillway_add_gradient(spillway::cuda::GradientAddition p) {
    using namespace spillway::cuda;
    for (std::size_t i = first_element(); i < p.elements; i += element_stride())
        p.into[i] = one_nan(p.into[i] + p.from[i]);
}

extern "C" __global__ void spillway_widen_gradient(spillway::cuda::GradientWidening p) {
    using namespace spillway::cuda;
    for (std::size_t i = first_element(); i < p.elements; i += element_stride())
        p.to[i] = gradient_at(p.from, p.type, i);
}
