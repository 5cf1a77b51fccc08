// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/gradient_scan.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "cpu_optim/detail/gradient_element.h"
#include "cpu_optim/detail/kernel_table.h"
#include "cpu_optim/detail/lane_sum.h"
#include "cpu_optim/detail/one_nan.h"
#include "cpu_optim/detail/require_same_length.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_optim/gradient_scan.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu_optim/detail/gradient_load-inl.h"

#if SPILLWAY_VECTOR_TARGET
HWY_BEFORE_NAMESPACE();
namespace spillway::cpu_optim {
namespace HWY_NAMESPACE {
namespace {

// Four registers of four lanes on AVX-512 too: each lane is a chain of additions, so a row of 16
// costs one addition's latency whatever the width, and two wider registers would be no faster.
using DoubleTag = hn::CappedTag<double, 4>;
using NarrowTag = hn::Rebind<float, DoubleTag>;
using DoubleVector = hn::Vec<DoubleTag>;

/// How far ahead memory is asked for. Measured: without, two cores of an Emerald Rapids Xeon scan
/// 21 GB/s, with it 30.
constexpr std::size_t bytes_ahead = 4096;

/// The square of a float is exact in double, so that fusing it with the addition changes no bit.
template <GradientType type>
HWY_INLINE DoubleVector add_squares(DoubleVector sum, const void* HWY_RESTRICT tile,
                                    std::size_t i) {
    const auto x = hn::PromoteTo(DoubleTag(), load_gradient<type>(NarrowTag(), tile, i));
    return hn::MulAdd(x, x, sum);
}

template <GradientType type>
std::size_t sum_rows_of(const void* HWY_RESTRICT tile, std::size_t elements,
                        double* HWY_RESTRICT lanes) {
    const DoubleTag doubles;
    auto sum0 = hn::Zero(doubles);
    auto sum1 = hn::Zero(doubles);
    auto sum2 = hn::Zero(doubles);
    auto sum3 = hn::Zero(doubles);
    constexpr std::size_t elements_ahead = bytes_ahead / gradient_bytes(type);
    std::size_t i = 0;
    for (; i + 16 <= elements; i += 16) {
        prefetch_gradient<type>(tile, i + elements_ahead, 1);
        sum0 = add_squares<type>(sum0, tile, i);
        sum1 = add_squares<type>(sum1, tile, i + 4);
        sum2 = add_squares<type>(sum2, tile, i + 8);
        sum3 = add_squares<type>(sum3, tile, i + 12);
    }
    hn::StoreU(sum0, doubles, lanes);
    hn::StoreU(sum1, doubles, lanes + 4);
    hn::StoreU(sum2, doubles, lanes + 8);
    hn::StoreU(sum3, doubles, lanes + 12);
    return i;
}

std::size_t sum_whole_rows(const void* HWY_RESTRICT tile, GradientType type, std::size_t elements,
                           double* HWY_RESTRICT lanes) {
    switch (type) {
        case GradientType::fp32:
            return sum_rows_of<GradientType::fp32>(tile, elements, lanes);
        case GradientType::bf16:
            return sum_rows_of<GradientType::bf16>(tile, elements, lanes);
        case GradientType::fp16:
            return sum_rows_of<GradientType::fp16>(tile, elements, lanes);
    }
    return 0;
}

std::size_t add_whole_vectors(float* HWY_RESTRICT into, const float* HWY_RESTRICT from,
                              std::size_t elements) {
    const hn::ScalableTag<float> floats;
    const auto quiet_nan =
        hn::BitCast(floats, hn::Set(hn::RebindToUnsigned<decltype(floats)>(), 0x7FC00000u));
    const std::size_t lanes = hn::Lanes(floats);
    std::size_t i = 0;
    for (; i + lanes <= elements; i += lanes) {
        const auto sum = hn::Add(hn::LoadU(floats, into + i), hn::LoadU(floats, from + i));
        hn::StoreU(hn::IfThenElse(hn::IsNaN(sum), quiet_nan, sum), floats, into + i);
    }
    return i;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu_optim
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace spillway::cpu_optim {
namespace {

using SumKernel = std::size_t(const void*, GradientType, std::size_t, double*);
using AddKernel = std::size_t(float*, const float*, std::size_t);

constexpr detail::KernelTable<SumKernel> sum_kernels = SPILLWAY_KERNEL_TABLE(sum_whole_rows);
constexpr detail::KernelTable<AddKernel> add_kernels = SPILLWAY_KERNEL_TABLE(add_whole_vectors);

std::uint64_t count_nonfinite(const void* tile, GradientType type, std::size_t elements) {
    std::uint64_t count = 0;
    for (std::size_t i = 0; i < elements; ++i)
        count += std::isfinite(detail::gradient_element(tile, type, i)) ? 0u : 1u;
    return count;
}

}  // namespace

GradientScan scan_gradient(Isa isa, const void* tile, GradientType type, std::size_t elements) {
    std::array<double, detail::sum_lanes> lanes{};
    std::size_t i = 0;
    if (const auto kernel = sum_kernels.at(isa))
        i = kernel(tile, type, elements, lanes.data());
    for (; i < elements; ++i) {
        const double x = detail::gradient_element(tile, type, i);
        lanes[i % detail::sum_lanes] += x * x;
    }

    const double sum = detail::add_up_lanes(lanes);
    // Finite floats cannot overflow it: FLT_MAX squared, 2^64 times, is below 2^320. So a finite
    // sum proves that all elements are finite, and the count costs a second pass only where it is
    // not 0.
    return {.sum_of_squares = sum,
            .nonfinite = std::isfinite(sum) ? 0 : count_nonfinite(tile, type, elements)};
}

GradientScan scan_gradient(Isa isa, std::span<const float> tile) {
    return scan_gradient(isa, tile.data(), GradientType::fp32, tile.size());
}

void add_gradient(Isa isa, std::span<float> into, std::span<const float> from) {
    detail::require_same_length("add_gradient", "from", from.size(), into.size());
    std::size_t i = 0;
    if (const auto kernel = add_kernels.at(isa))
        i = kernel(into.data(), from.data(), into.size());
    for (; i < into.size(); ++i)
        into[i] = detail::with_one_nan(into[i] + from[i]);
}

}  // namespace spillway::cpu_optim
#endif  // HWY_ONCE
