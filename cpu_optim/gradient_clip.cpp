// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/gradient_clip.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>

#include <fmt/format.h>

#include "cpu_optim/detail/kernel_table.h"
#include "cpu_optim/detail/magnitude_clamp.h"
#include "cpu_optim/float_formats.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_optim/gradient_clip.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if SPILLWAY_VECTOR_TARGET
HWY_BEFORE_NAMESPACE();
namespace spillway::cpu_optim {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

template <typename Bits>
detail::Clamped clamp_whole_vectors(const detail::MagnitudeClamp<Bits>& clamp,
                                    Bits* HWY_RESTRICT gradient, std::size_t elements) {
    const hn::ScalableTag<Bits> d;
    const std::size_t lanes = hn::Lanes(d);
    const auto sign = hn::Set(d, static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1)));
    const auto most = hn::Set(d, clamp.most);
    const auto infinity = hn::Set(d, clamp.infinity);
    std::size_t changed = 0;
    std::size_t i = 0;
    for (; i + lanes <= elements; i += lanes) {
        const auto bits = hn::LoadU(d, gradient + i);
        const auto magnitude = hn::AndNot(sign, bits);
        const auto is_nan = hn::Gt(magnitude, infinity);
        const auto clamped = hn::Or(hn::Min(magnitude, most), hn::And(sign, bits));
        const auto result = hn::IfThenElse(is_nan, bits, clamped);
        changed += hn::CountTrue(d, hn::Ne(result, bits));
        hn::StoreU(result, d, gradient + i);
    }
    return {i, changed};
}

detail::Clamped clamp_floats(const detail::MagnitudeClamp<std::uint32_t>& clamp,
                             std::uint32_t* gradient, std::size_t elements) {
    return clamp_whole_vectors(clamp, gradient, elements);
}
detail::Clamped clamp_halves(const detail::MagnitudeClamp<std::uint16_t>& clamp,
                             std::uint16_t* gradient, std::size_t elements) {
    return clamp_whole_vectors(clamp, gradient, elements);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu_optim
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace spillway::cpu_optim {
namespace {

using detail::Clamped;
using detail::MagnitudeClamp;

template <typename Bits>
using ClampKernel = Clamped(const MagnitudeClamp<Bits>&, Bits*, std::size_t);

constexpr detail::KernelTable<ClampKernel<std::uint32_t>> float_kernels =
    SPILLWAY_KERNEL_TABLE(clamp_floats);
constexpr detail::KernelTable<ClampKernel<std::uint16_t>> half_kernels =
    SPILLWAY_KERNEL_TABLE(clamp_halves);

template <typename Bits>
Bits clamped(const MagnitudeClamp<Bits>& clamp, Bits bits) {
    constexpr auto sign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
    const auto magnitude = static_cast<Bits>(bits & ~sign);
    if (magnitude > clamp.infinity)
        return bits;
    return static_cast<Bits>(std::min(magnitude, clamp.most) | (bits & sign));
}

template <typename Bits>
std::uint64_t clamp_all(const detail::KernelTable<ClampKernel<Bits>>& kernels, Isa isa,
                        const MagnitudeClamp<Bits>& clamp, void* gradient, std::size_t elements) {
    Bits* const values = static_cast<Bits*>(gradient);
    Clamped done{.elements = 0, .changed = 0};
    if (const auto kernel = kernels.at(isa))
        done = kernel(clamp, values, elements);
    for (std::size_t i = done.elements; i < elements; ++i) {
        const Bits result = clamped(clamp, values[i]);
        done.changed += result != values[i] ? 1u : 0u;
        values[i] = result;
    }
    return done.changed;
}

}  // namespace

double clip_coefficient(double most_norm, double sum_of_squares, double gradient_scale) {
    if (!(most_norm > 0))
        throw std::invalid_argument(
            fmt::format("clip_coefficient: most_norm is {} and must be above 0", most_norm));
    const double norm = std::sqrt(sum_of_squares) * std::abs(gradient_scale);
    const double coefficient = most_norm / (norm + 1e-6);
    return coefficient < 1 ? coefficient : 1;
}

std::uint64_t clip_values(Isa isa, void* gradient, GradientType type, std::size_t elements,
                          float most) {
    if (!(most >= 0))
        throw std::invalid_argument(
            fmt::format("clip_values: most is {} and must be 0 or more", most));
    switch (type) {
        case GradientType::fp32:
            return clamp_all<std::uint32_t>(float_kernels, isa,
                                            {std::bit_cast<std::uint32_t>(most), 0x7F800000},
                                            gradient, elements);
        case GradientType::bf16:
            return clamp_all<std::uint16_t>(half_kernels, isa, {to_bf16(most), 0x7F80}, gradient,
                                            elements);
        case GradientType::fp16:
            return clamp_all<std::uint16_t>(half_kernels, isa, {to_fp16(most), 0x7C00}, gradient,
                                            elements);
    }
    return 0;
}

}  // namespace spillway::cpu_optim
#endif  // HWY_ONCE
