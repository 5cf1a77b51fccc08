// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors

// Compiled once per target: the guard flips with HWY_TARGET_TOGGLE instead of closing for good.
#if defined(SPILLWAY_CPU_OPTIM_GRADIENT_LOAD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_CPU_OPTIM_GRADIENT_LOAD_INL_H
#undef SPILLWAY_CPU_OPTIM_GRADIENT_LOAD_INL_H
#else
#define SPILLWAY_CPU_OPTIM_GRADIENT_LOAD_INL_H
#endif

#include <cstddef>
#include <cstdint>

#include "cpu_optim/gradient_scan.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

#if SPILLWAY_VECTOR_TARGET
HWY_BEFORE_NAMESPACE();
namespace spillway::cpu_optim {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

/// The elements of `gradient` from `i` on, widened exactly to the floats of `d`.
template <GradientType type, class D>
HWY_INLINE hn::Vec<D> load_gradient(D d, const void* HWY_RESTRICT gradient, std::size_t i) {
    if constexpr (type == GradientType::fp32) {
        return hn::LoadU(d, static_cast<const float*>(gradient) + i);
    } else if constexpr (type == GradientType::bf16) {
        const hn::Rebind<std::uint16_t, D> halves;
        const hn::RebindToUnsigned<D> bits;
        const auto half = hn::LoadU(halves, static_cast<const std::uint16_t*>(gradient) + i);
        return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(bits, half)));
    } else {
        const hn::Rebind<hwy::float16_t, D> halves;
        return hn::PromoteTo(d,
                             hn::LoadU(halves, static_cast<const hwy::float16_t*>(gradient) + i));
    }
}

/// Asks for `bytes` of memory from `offset_bytes` behind `base` on, which may lie behind the end of
/// what there is: asking never fails, and what follows a run is mostly the next one.
HWY_INLINE HWY_MAYBE_UNUSED void prefetch(const void* base, std::size_t offset_bytes,
                                          std::size_t bytes) {
    constexpr std::size_t line_bytes = 64;
    const auto from = reinterpret_cast<std::uintptr_t>(base) + offset_bytes;
    for (std::size_t i = 0; i < bytes; i += line_bytes)
        hwy::Prefetch(reinterpret_cast<const std::uint8_t*>(from + i));
}

/// Asks for the memory of `elements` of `gradient` from `i` on.
template <GradientType type>
HWY_INLINE HWY_MAYBE_UNUSED void prefetch_gradient(const void* gradient, std::size_t i,
                                                   std::size_t elements) {
    prefetch(gradient, i * gradient_bytes(type), elements * gradient_bytes(type));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu_optim
HWY_AFTER_NAMESPACE();
#endif  // SPILLWAY_VECTOR_TARGET

#endif  // per-target guard
