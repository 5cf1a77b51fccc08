// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include "cpu_optim/moment_codec.h"
#include "cuda/kernels/lossy_parameters.h"
#include "cuda/kernels/optimizer.cuh"

// Updates whose state is kept in fewer bits: decoded, updated as in optimizer.cuh, encoded. What
// is stored is what cpu_optim's reference stores, rounding and random numbers included.
namespace spillway::cuda {

/// Element `i`, of which `element` has the state alone; its master is stored, and counted.
template <typename Update>
__device__ __forceinline__ void update_element(const Update& p, Element& element, std::size_t i,
                                               unsigned long long& counted) {
    element.w = master_at(p.planes, i);
    update(p.coefficients, element, gradient_at(p.planes.gradient, p.planes.gradient_type, i));
    counted += store_master(p.planes, one_nan(element.w), i) ? 1u : 0u;
}

__device__ __forceinline__ std::uint32_t random_at(const RoundingSource& rounding, std::size_t i) {
    return cpu_optim::random_bits(rounding.key, rounding.first_element + i);
}

template <typename Coefficients>
__device__ __forceinline__ void update_run(const Bf16Update<Coefficients>& p) {
    constexpr cpu_optim::MomentKind kinds[] = {cpu_optim::kinds_of<Coefficients>[0],
                                               cpu_optim::kinds_of<Coefficients>[1]};
    const std::size_t planes = cpu_optim::state_planes(p.coefficients);
    unsigned long long counted = 0;
    for (std::size_t i = first_element(); i < p.planes.elements; i += element_stride()) {
        Element element{0, {0, 0, 0}};
        for (std::size_t plane = 0; plane < cpu_optim::most_lossy_planes; ++plane)
            if (plane < planes)
                element.state[plane] = cpu_optim::from_bf16(p.state[plane][i]);
        update_element(p, element, i, counted);
        for (std::size_t plane = 0; plane < cpu_optim::most_lossy_planes; ++plane)
            if (plane < planes)
                p.state[plane][i] =
                    kinds[plane] == cpu_optim::MomentKind::mean
                        ? cpu_optim::to_bf16(element.state[plane])
                        : cpu_optim::to_bf16(element.state[plane], random_at(p.rounding, i));
    }
    if (counted != 0)
        atomicAdd(p.planes.counted, counted);
}

/// One of the 32 lanes that have a block of codes between them: two words of each plane, so eight
/// elements, whose new state stays in registers until the scale is known.
template <typename Coefficients>
class CodeLane {
  public:
    __device__ __forceinline__ CodeLane(const Int8Update<Coefficients>& p, std::size_t block)
        : p_(p), block_(block), lane_(threadIdx.x % lanes) {}

    /// Decodes and updates. Returns the masters to be counted.
    __device__ __forceinline__ unsigned long long update_elements() {
        unsigned long long counted = 0;
        std::uint32_t old[planes][words];
        std::uint8_t scale[planes];
        for (std::size_t plane = 0; plane < planes; ++plane) {
            if (!is_used(plane))
                continue;
            scale[plane] = p_.scales[plane][block_];
            for (std::size_t word = 0; word < words; ++word)
                old[plane][word] = *code_word(plane, word);
        }
        for (std::size_t n = 0; n < each; ++n) {
            Element element{0, {0, 0, 0}};
            if (is_there(n)) {
                for (std::size_t plane = 0; plane < planes; ++plane)
                    if (is_used(plane))
                        element.state[plane] =
                            cpu_optim::decode(kind_of(plane), code_at(old[plane], n), scale[plane]);
                update_element(p_, element, at(n), counted);
            }
            for (std::size_t plane = 0; plane < planes; ++plane)
                values_[plane][n] = is_there(n) ? one_nan(element.state[plane]) : 0.0F;
        }
        return counted;
    }

    /// What the block's largest value makes its scale, and every code.
    __device__ __forceinline__ void encode_plane(std::size_t plane) {
        if (!is_used(plane))
            return;
        const cpu_optim::MomentKind kind = kind_of(plane);
        // Every lane has read the old scale by now: its own values come from it.
        const std::uint8_t scale = cpu_optim::scale_of(kind, largest_bits(plane));
        std::uint32_t fresh[words] = {};
        for (std::size_t n = 0; n < each; ++n) {
            if (!is_there(n) || scale == cpu_optim::nan_scale)
                continue;
            const std::uint32_t term =
                cpu_optim::rounding_term(kind, random_at(p_.rounding, at(n)));
            const std::uint32_t code = cpu_optim::encode(kind, values_[plane][n], scale, term);
            fresh[n % words] |= code << (n / words * 8);
        }
        for (std::size_t word = 0; word < words; ++word)
            *code_word(plane, word) = fresh[word];
        if (lane_ == 0)
            p_.scales[plane][block_] = scale;
    }

  private:
    static constexpr unsigned lanes = 32;
    static constexpr std::size_t planes = cpu_optim::most_lossy_planes;
    static constexpr std::size_t words = Int8Update<Coefficients>::words_a_block / lanes;
    static constexpr std::size_t each = words * 4;

    static __device__ __forceinline__ cpu_optim::MomentKind kind_of(std::size_t plane) {
        return plane == 0 ? cpu_optim::kinds_of<Coefficients>[0]
                          : cpu_optim::kinds_of<Coefficients>[1];
    }
    __device__ __forceinline__ bool is_used(std::size_t plane) const {
        return plane < cpu_optim::state_planes(p_.coefficients);
    }
    /// Of the run: byte n / words of word n % words, which is element n * lanes from the lane's
    /// first on.
    __device__ __forceinline__ std::size_t at(std::size_t n) const {
        return block_ * cpu_optim::block_elements + n * lanes + lane_;
    }
    __device__ __forceinline__ bool is_there(std::size_t n) const {
        return at(n) < p_.planes.elements;
    }
    __device__ __forceinline__ std::uint32_t* code_word(std::size_t plane, std::size_t word) const {
        return p_.codes[plane] + block_ * Int8Update<Coefficients>::words_a_block + word * lanes +
               lane_;
    }
    static __device__ __forceinline__ std::uint8_t code_at(const std::uint32_t* old,
                                                           std::size_t n) {
        return static_cast<std::uint8_t>(old[n % words] >> (n / words * 8));
    }
    /// Of the magnitudes of the block's values; that of a NaN is above all others.
    __device__ __forceinline__ std::uint32_t largest_bits(std::size_t plane) const {
        std::uint32_t largest = 0;
        for (std::size_t n = 0; n < each; ++n) {
            const std::uint32_t bits = __float_as_uint(values_[plane][n]) & 0x7FFFFFFFu;
            largest = bits > largest ? bits : largest;
        }
        for (unsigned with = lanes / 2; with > 0; with /= 2) {
            const std::uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, largest, with);
            largest = other > largest ? other : largest;
        }
        return largest;
    }

    const Int8Update<Coefficients>& p_;
    std::size_t block_;
    unsigned lane_;
    float values_[planes][each];
};

template <typename Coefficients>
__device__ __forceinline__ void update_run(const Int8Update<Coefficients>& p) {
    constexpr unsigned lanes = 32;
    unsigned long long counted = 0;
    const std::size_t blocks = p.blocks();
    for (std::size_t block = first_element() / lanes; block < blocks;
         block += element_stride() / lanes) {
        CodeLane<Coefficients> lane(p, block);
        counted += lane.update_elements();
        lane.encode_plane(0);
        lane.encode_plane(1);
    }
    if (counted != 0)
        atomicAdd(p.planes.counted, counted);
}

}  // namespace spillway::cuda

extern "C" __global__ void spillway_update_adam_bf16(
    spillway::cuda::Bf16Update<spillway::cpu_optim::AdamCoefficients> p) {
    spillway::cuda::update_run(p);
}
extern "C" __global__ void spillway_update_adam_int8(
    spillway::cuda::Int8Update<spillway::cpu_optim::AdamCoefficients> p) {
    spillway::cuda::update_run(p);
}
extern "C" __global__ void spillway_update_sgd_bf16(
    spillway::cuda::Bf16Update<spillway::cpu_optim::SgdCoefficients> p) {
    spillway::cuda::update_run(p);
}
extern "C" __global__ void spillway_update_sgd_int8(
    spillway::cuda::Int8Update<spillway::cpu_optim::SgdCoefficients> p) {
    spillway::cuda::update_run(p);
}
extern "C" __global__ void spillway_update_adagrad_bf16(
    spillway::cuda::Bf16Update<spillway::cpu_optim::AdagradCoefficients> p) {
    spillway::cuda::update_run(p);
}
extern "C" __global__ void spillway_update_adagrad_int8(
    spillway::cuda::Int8Update<spillway::cpu_optim::AdagradCoefficients> p) {
    spillway::cuda::update_run(p);
}
extern "C" __global__ void spillway_update_lion_bf16(
    spillway::cuda::Bf16Update<spillway::cpu_optim::LionCoefficients> p) {
    spillway::cuda::update_run(p);
}
extern "C" __global__ void spillway_update_lion_int8(
    spillway::cuda::Int8Update<spillway::cpu_optim::LionCoefficients> p) {
    spillway::cuda::update_run(p);
}
extern "C" __global__ void spillway_update_rmsprop_bf16(
    spillway::cuda::Bf16Update<spillway::cpu_optim::RmspropCoefficients> p) {
    spillway::cuda::update_run(p);
}
extern "C" __global__ void spillway_update_rmsprop_int8(
    spillway::cuda::Int8Update<spillway::cpu_optim::RmspropCoefficients> p) {
    spillway::cuda::update_run(p);
}
