// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include "cpu_optim/float_formats.h"
#include "cpu_optim/split_master.h"
#include "cuda/kernels/elementwise_rules.cuh"
#include "cuda/kernels/parameters.h"

// The update of one run of elements, whichever the rule: a thread takes one element, then the one
// that lies as many behind it as there are threads. All of it is bound by memory: that the rule's
// switches are looked at while it runs costs nothing.
namespace spillway::cuda {

__device__ __forceinline__ std::size_t first_element() {
    return std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ std::size_t element_stride() {
    return std::size_t{gridDim.x} * blockDim.x;
}

__device__ __forceinline__ float gradient_at(const void* gradient, cpu_optim::GradientType type,
                                             std::size_t i) {
    if (type == cpu_optim::GradientType::fp32)
        return static_cast<const float*>(gradient)[i];
    const std::uint16_t half = static_cast<const std::uint16_t*>(gradient)[i];
    return type == cpu_optim::GradientType::bf16 ? cpu_optim::from_bf16(half)
                                                 : cpu_optim::from_fp16(half);
}

__device__ __forceinline__ bool is_finite(float value) {
    return (__float_as_uint(value) & 0x7FFFFFFFu) < 0x7F800000u;
}

/// The master of element `i`, whole or in halves.
template <typename Planes>
__device__ __forceinline__ float master_at(const Planes& planes, std::size_t i) {
    return planes.master != nullptr ? planes.master[i]
                                    : cpu_optim::join({planes.weight[i], planes.residue[i]});
}

/// Whether it is to be counted.
__device__ __forceinline__ bool store_master(const UpdatedPlanes& planes, float master,
                                             std::size_t i) {
    if (planes.master != nullptr) {
        planes.master[i] = master;
        return !is_finite(master);
    }
    const cpu_optim::SplitWeight halves = cpu_optim::split(master);
    planes.weight[i] = halves.hi;
    planes.residue[i] = halves.lo;
    return !cpu_optim::has_finite_hi(master);
}

template <typename Coefficients>
__device__ __forceinline__ void update_run(const ElementwiseUpdate<Coefficients>& p) {
    const int planes = static_cast<int>(cpu_optim::state_planes(p.coefficients));
    unsigned long long counted = 0;
    for (std::size_t i = first_element(); i < p.planes.elements; i += element_stride()) {
        Element element{master_at(p.planes, i), {0, 0, 0}};
        // A fixed count, so that the state stays in registers.
        for (int plane = 0; plane < 3; ++plane)
            if (plane < planes)
                element.state[plane] = p.state[plane][i];
        update(p.coefficients, element, gradient_at(p.planes.gradient, p.planes.gradient_type, i));
        for (int plane = 0; plane < 3; ++plane)
            if (plane < planes)
                p.state[plane][i] = one_nan(element.state[plane]);
        counted += store_master(p.planes, one_nan(element.w), i) ? 1u : 0u;
    }
    if (counted != 0)
        atomicAdd(p.planes.counted, counted);
}

}  // namespace spillway::cuda

extern "C" __global__ void spillway_update_adam(
    spillway::cuda::ElementwiseUpdate<spillway::cpu_optim::AdamCoefficients> p) {
    spillway::cuda::update_run(p);
}
extern "C" __global__ void spillway_update_sgd(
    spillway::cuda::ElementwiseUpdate<spillway::cpu_optim::SgdCoefficients> p) {
    spillway::cuda::update_run(p);
}
extern "C" __global__ void spillway_update_adagrad(
    spillway::cuda::ElementwiseUpdate<spillway::cpu_optim::AdagradCoefficients> p) {
    spillway::cuda::update_run(p);
}
extern "C" __global__ void spillway_update_lion(
    spillway::cuda::ElementwiseUpdate<spillway::cpu_optim::LionCoefficients> p) {
    spillway::cuda::update_run(p);
}
extern "C" __global__ void spillway_update_rmsprop(
    spillway::cuda::ElementwiseUpdate<spillway::cpu_optim::RmspropCoefficients> p) {
    spillway::cuda::update_run(p);
}

extern "C" __global__ void spillway_update_average(spillway::cuda::AverageUpdate p) {
    using namespace spillway::cuda;
    for (std::size_t i = first_element(); i < p.elements; i += element_stride()) {
        const float weight = master_at(p, i);
        const float average = p.average[i];
        p.average[i] = one_nan(p.starts == spillway::cpu_optim::Term::on
                                   ? weight
                                   : fmaf(p.share, weight - average, average));
    }
}
