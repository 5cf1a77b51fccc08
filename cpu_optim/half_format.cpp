// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/half_format.h"

#include "cpu_optim/detail/elementwise_run.h"
#include "cpu_optim/detail/kernel_table.h"
#include "cpu_optim/detail/one_nan.h"
#include "cpu_optim/float_formats.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_optim/half_format.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu_optim/detail/gradient_load-inl.h"
#include "cpu_optim/detail/master-inl.h"

#if SPILLWAY_VECTOR_TARGET
HWY_BEFORE_NAMESPACE();
namespace spillway::cpu_optim {
namespace HWY_NAMESPACE {
namespace {

template <GradientType type>
std::size_t widen_vectors(const std::uint16_t* HWY_RESTRICT from, float* HWY_RESTRICT to,
                          std::size_t elements) {
    const FloatTag d;
    const std::size_t lanes = hn::Lanes(d);
    std::size_t i = 0;
    for (; i + lanes <= elements; i += lanes)
        hn::StoreU(with_one_nan(load_gradient<type>(d, from, i)), d, to + i);
    return i;
}

std::size_t widen_whole_vectors(HalfFormat format, const std::uint16_t* from, float* to,
                                std::size_t elements) {
    return format == HalfFormat::bf16 ? widen_vectors<GradientType::bf16>(from, to, elements)
                                      : widen_vectors<GradientType::fp16>(from, to, elements);
}

/// to_bf16() and to_fp16() of a vector whose NaNs are one.
struct ToBf16 {
    HWY_INLINE void operator()(FloatVector value, std::uint16_t* HWY_RESTRICT to) const {
        const BitsTag bits;
        const auto u = hn::BitCast(bits, value);
        const auto is_odd = hn::And(hn::ShiftRight<16>(u), hn::Set(bits, 1u));
        const auto rounded = hn::Add(u, hn::Add(is_odd, hn::Set(bits, 0x7FFFu)));
        hn::StoreU(hn::TruncateTo(HiTag(), hn::ShiftRight<16>(rounded)), HiTag(), to);
    }
};
struct ToFp16 {
    HWY_INLINE void operator()(FloatVector value, std::uint16_t* HWY_RESTRICT to) const {
        const hn::Rebind<hwy::float16_t, FloatTag> halves;
        hn::StoreU(hn::BitCast(HiTag(), hn::DemoteTo(halves, value)), HiTag(), to);
    }
};

/// A float of more than `largest_bits` has no finite result.
template <std::uint32_t largest_bits, class Convert>
detail::Progress narrow_vectors(const Convert& convert, const float* HWY_RESTRICT from,
                                std::uint16_t* HWY_RESTRICT to, std::size_t elements) {
    const FloatTag d;
    const std::size_t lanes = hn::Lanes(d);
    const auto largest = hn::BitCast(d, hn::Set(BitsTag(), largest_bits));
    std::size_t nonfinite = 0;
    std::size_t i = 0;
    for (; i + lanes <= elements; i += lanes) {
        const auto value = with_one_nan(hn::LoadU(d, from + i));
        nonfinite += lanes - hn::CountTrue(d, hn::Le(hn::Abs(value), largest));
        convert(value, to + i);
    }
    return {i, nonfinite};
}

detail::Progress narrow_whole_vectors(HalfFormat format, const float* from, std::uint16_t* to,
                                      std::size_t elements) {
    return format == HalfFormat::bf16 ? narrow_vectors<0x7F7F7FFFu>(ToBf16(), from, to, elements)
                                      : narrow_vectors<0x477FEFFFu>(ToFp16(), from, to, elements);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu_optim
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace spillway::cpu_optim {
namespace {

constexpr detail::KernelTable<std::size_t(HalfFormat, const std::uint16_t*, float*, std::size_t)>
    widen_kernels = SPILLWAY_KERNEL_TABLE(widen_whole_vectors);
constexpr detail::KernelTable<detail::Progress(HalfFormat, const float*, std::uint16_t*,
                                               std::size_t)>
    narrow_kernels = SPILLWAY_KERNEL_TABLE(narrow_whole_vectors);

bool is_finite(HalfFormat format, std::uint16_t half) {
    const unsigned infinity = format == HalfFormat::bf16 ? 0x7F80 : 0x7C00;
    return (half & 0x7FFFu) < infinity;
}

}  // namespace

void widen(Isa isa, HalfFormat format, const std::uint16_t* from, float* to, std::size_t elements) {
    const auto kernel = widen_kernels.at(isa);
    std::size_t i = kernel != nullptr ? kernel(format, from, to, elements) : 0;
    for (; i < elements; ++i)
        to[i] = detail::with_one_nan(format == HalfFormat::bf16 ? from_bf16(from[i])
                                                                : from_fp16(from[i]));
}

std::size_t narrow(Isa isa, HalfFormat format, const float* from, std::uint16_t* to,
                   std::size_t elements) {
    detail::Progress progress{.elements = 0, .nonfinite = 0};
    if (const auto kernel = narrow_kernels.at(isa))
        progress = kernel(format, from, to, elements);
    for (std::size_t i = progress.elements; i < elements; ++i) {
        to[i] = format == HalfFormat::bf16 ? to_bf16(from[i]) : to_fp16(from[i]);
        progress.nonfinite += is_finite(format, to[i]) ? 0u : 1u;
    }
    return progress.nonfinite;
}

}  // namespace spillway::cpu_optim
#endif  // HWY_ONCE
