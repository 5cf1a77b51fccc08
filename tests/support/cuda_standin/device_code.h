// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

// What nvcc knows by itself, for kernels compiled as C++. Included before a kernel's source.

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>

#include "tests/support/cuda_standin/emulator.h"

#define __global__
#define __device__
#define __forceinline__ inline
// The fibres of a block share the thread of the host they run on; two streams have two.
#define __shared__ static thread_local
#define __launch_bounds__(...)
#define SPILLWAY_DYNAMIC_SHARED(type, name) \
    type* const name = reinterpret_cast<type*>(::spillway::standin::shared_memory())
#define threadIdx (::spillway::standin::thread_index())
#define blockIdx (::spillway::standin::block_index())
#define blockDim (::spillway::standin::block_dimension())
#define gridDim (::spillway::standin::grid_dimension())

inline void __syncthreads() {
    ::spillway::standin::block_barrier();
}

inline int __syncthreads_or(int value) {
    return ::spillway::standin::block_vote(value != 0) ? 1 : 0;
}

template <typename T>
T __shfl_down_sync(std::uint32_t mask, T value, unsigned by, int width = 32) {
    const unsigned lane = threadIdx.x % 32;
    const auto w = static_cast<unsigned>(width);
    // Past the end of its part of the warp a lane gets its own value back.
    const unsigned from = lane % w + by < w ? lane + by : lane;
    ::spillway::standin::exchange_in_warp(mask, &value, sizeof(T), from);
    return value;
}

template <typename T>
T __shfl_xor_sync(std::uint32_t mask, T value, unsigned with) {
    ::spillway::standin::exchange_in_warp(mask, &value, sizeof(T), (threadIdx.x % 32) ^ with);
    return value;
}

inline unsigned long long atomicAdd(unsigned long long* to, unsigned long long value) {
    return std::atomic_ref(*to).fetch_add(value);
}

inline std::uint32_t __float_as_uint(float value) {
    return std::bit_cast<std::uint32_t>(value);
}
inline float __uint_as_float(std::uint32_t bits) {
    return std::bit_cast<float>(bits);
}
inline double __longlong_as_double(long long bits) {
    return std::bit_cast<double>(bits);
}
