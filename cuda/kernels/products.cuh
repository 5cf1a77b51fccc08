// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include "cuda/kernels/optimizer.cuh"
#include "cuda/kernels/trainer_parameters.h"

namespace spillway::cuda {

/// Four elements past an edge: where the inner direction is dense, neighbouring threads write
/// neighbouring rows of a slab, which without them begin in one bank of shared memory. Rows stay
/// aligned to 16 bytes.
constexpr unsigned slab_pitch = Product::edge + 4;

/// A slab of one operand, `Product::depth` deep, laid into shared memory as [depth][edge]; 0 where
/// the matrix has ended, which changes no sum. Neighbouring threads read neighbouring elements
/// whichever of the two directions is dense.
__device__ __forceinline__ void load_slab(float (*slab)[slab_pitch], const float* from,
                                          std::size_t first, std::size_t count, std::size_t stride,
                                          std::size_t first_inner, std::size_t inner,
                                          std::size_t inner_stride) {
    for (unsigned n = threadIdx.x; n < Product::depth * Product::edge; n += Product::threads) {
        const bool inner_is_dense = inner_stride == 1;
        const unsigned k = inner_is_dense ? n % Product::depth : n / Product::edge;
        const unsigned i = inner_is_dense ? n / Product::depth : n % Product::edge;
        const bool inside = first + i < count && first_inner + k < inner;
        slab[k][i] = inside ? from[(first + i) * stride + (first_inner + k) * inner_stride] : 0.0F;
    }
}

}  // namespace spillway::cuda

/// Each of 256 threads has 4 x 4 elements, in registers.
extern "C" __global__ void __launch_bounds__(spillway::cuda::Product::threads)
    spillway_product(spillway::cuda::Product p) {
    using namespace spillway::cuda;
    constexpr unsigned each = 4;
    constexpr unsigned across = Product::edge / each;
    __shared__ float a_slab[Product::depth][slab_pitch];
    __shared__ float b_slab[Product::depth][slab_pitch];
    const std::size_t first_row = blockIdx.x / p.blocks_across() * Product::edge;
    const std::size_t first_column = blockIdx.x % p.blocks_across() * Product::edge;
    const std::size_t row = first_row + threadIdx.x / across * each;
    const std::size_t column = first_column + threadIdx.x % across * each;
    float sums[each][each];
    for (unsigned i = 0; i < each; ++i)
        for (unsigned j = 0; j < each; ++j)
            sums[i][j] = p.adds && row + i < p.rows && column + j < p.columns
                             ? p.result[(row + i) * p.columns + column + j]
                             : 0.0F;
    for (std::size_t k = 0; k < p.inner; k += Product::depth) {
        load_slab(a_slab, p.a, first_row, p.rows, p.a_row, k, p.inner, p.a_column);
        load_slab(b_slab, p.b, first_column, p.columns, p.b_column, k, p.inner, p.b_row);
        __syncthreads();
        const std::size_t left = p.inner - k;
        const unsigned depth = left < Product::depth ? static_cast<unsigned>(left) : Product::depth;
        for (unsigned d = 0; d < depth; ++d)
            for (unsigned i = 0; i < each; ++i)
                for (unsigned j = 0; j < each; ++j)
                    sums[i][j] = fmaf(a_slab[d][threadIdx.x / across * each + i],
                                      b_slab[d][threadIdx.x % across * each + j], sums[i][j]);
        __syncthreads();
    }
    for (unsigned i = 0; i < each; ++i)
        for (unsigned j = 0; j < each; ++j)
            if (row + i < p.rows && column + j < p.columns)
                p.result[(row + i) * p.columns + column + j] = sums[i][j];
}

namespace spillway::cuda {

/// gelu(x) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3), and its slope.
struct Gelu {
    float value, slope;
};
__device__ __forceinline__ Gelu gelu(float x) {
    constexpr float twice_root = 1.5957691216F;
    constexpr float cubic = 0.044715F;
    const float twice_u = twice_root * fmaf(cubic * x * x, x, x);
    const float sigmoid = 1.0F / (1.0F + expf(-twice_u));
    const float complement = 1.0F / (1.0F + expf(twice_u));
    const float twice_du = twice_root * fmaf(3.0F * cubic * x, x, 1.0F);
    return {x * sigmoid, fmaf(x * sigmoid * complement, twice_du, sigmoid)};
}

}  // namespace spillway::cuda

extern "C" __global__ void spillway_bias_epilogue(spillway::cuda::BiasEpilogue p) {
    using namespace spillway::cuda;
    const std::size_t elements = p.tokens * p.features;
    for (std::size_t i = first_element(); i < elements; i += element_stride()) {
        float value = p.values[i] + p.bias[i % p.features];
        if (p.residual != nullptr)
            value += p.residual[i];
        p.values[i] = value;
        if (p.activated != nullptr)
            p.activated[i] = gelu(value).value;
    }
}

extern "C" __global__ void spillway_gelu_backward(spillway::cuda::GeluBackward p) {
    using namespace spillway::cuda;
    for (std::size_t i = first_element(); i < p.elements; i += element_stride()) {
        const Gelu at = gelu(p.values[i]);
        p.gradient[i] *= at.slope;
        p.activated[i] = at.value;
    }
}
