// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/gradient_scan.h"

#include <array>
#include <cmath>
#include <limits>

#include "cpu_optim/detail/kernel_table.h"
#include "cpu_optim/detail/require_same_length.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_optim/gradient_scan.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if SPILLWAY_VECTOR_TARGET
HWY_BEFORE_NAMESPACE();
namespace spillway::cpu_optim {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Four registers of four lanes on AVX-512 too: each lane is a chain of additions, so a row of 16
// costs one addition's latency whatever the width, and two wider registers would be no faster.
using DoubleTag = hn::CappedTag<double, 4>;
using NarrowTag = hn::Rebind<float, DoubleTag>;
using DoubleVector = hn::Vec<DoubleTag>;

/// The square of a float is exact in double, so that fusing it with the addition changes no bit.
HWY_INLINE DoubleVector add_squares(DoubleVector sum, const float* HWY_RESTRICT values) {
    const auto x = hn::PromoteTo(DoubleTag(), hn::LoadU(NarrowTag(), values));
    return hn::MulAdd(x, x, sum);
}

std::size_t sum_whole_rows(const float* HWY_RESTRICT values, std::size_t elements,
                           double* HWY_RESTRICT lanes) {
    const DoubleTag doubles;
    auto sum0 = hn::Zero(doubles);
    auto sum1 = hn::Zero(doubles);
    auto sum2 = hn::Zero(doubles);
    auto sum3 = hn::Zero(doubles);
    std::size_t i = 0;
    for (; i + 16 <= elements; i += 16) {
        sum0 = add_squares(sum0, values + i);
        sum1 = add_squares(sum1, values + i + 4);
        sum2 = add_squares(sum2, values + i + 8);
        sum3 = add_squares(sum3, values + i + 12);
    }
    hn::StoreU(sum0, doubles, lanes);
    hn::StoreU(sum1, doubles, lanes + 4);
    hn::StoreU(sum2, doubles, lanes + 8);
    hn::StoreU(sum3, doubles, lanes + 12);
    return i;
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

constexpr std::size_t lane_count = 16;

using SumKernel = std::size_t(const float*, std::size_t, double*);
using AddKernel = std::size_t(float*, const float*, std::size_t);

constexpr detail::KernelTable<SumKernel> sum_kernels = SPILLWAY_KERNEL_TABLE(sum_whole_rows);
constexpr detail::KernelTable<AddKernel> add_kernels = SPILLWAY_KERNEL_TABLE(add_whole_vectors);

/// Which NaN an operation passes on depends on the order the compiler gave its operands.
template <typename Float>
Float with_one_nan(Float value) {
    return std::isnan(value) ? std::numeric_limits<Float>::quiet_NaN() : value;
}

double add_up_lanes(std::array<double, lane_count> lanes) {
    for (std::size_t half = lane_count / 2; half > 0; half /= 2)
        for (std::size_t lane = 0; lane < half; ++lane)
            lanes[lane] += lanes[lane + half];
    return with_one_nan(lanes[0]);
}

std::uint64_t count_nonfinite(std::span<const float> tile) {
    std::uint64_t count = 0;
    for (const float value : tile)
        count += std::isfinite(value) ? 0u : 1u;
    return count;
}

}  // namespace

GradientScan scan_gradient(Isa isa, std::span<const float> tile) {
    std::array<double, lane_count> lanes{};
    std::size_t i = 0;
    if (const auto kernel = sum_kernels.at(isa))
        i = kernel(tile.data(), tile.size(), lanes.data());
    for (; i < tile.size(); ++i)
        lanes[i % lane_count] += static_cast<double>(tile[i]) * static_cast<double>(tile[i]);

    const double sum = add_up_lanes(lanes);
    // Finite floats cannot overflow it: FLT_MAX squared, 2^64 times, is below 2^320. So a finite
    // sum proves that all elements are finite, and the count costs a second pass only where it is
    // not 0.
    return {.sum_of_squares = sum, .nonfinite = std::isfinite(sum) ? 0 : count_nonfinite(tile)};
}

void add_gradient(Isa isa, std::span<float> into, std::span<const float> from) {
    detail::require_same_length("add_gradient", "from", from.size(), into.size());
    std::size_t i = 0;
    if (const auto kernel = add_kernels.at(isa))
        i = kernel(into.data(), from.data(), into.size());
    for (; i < into.size(); ++i)
        into[i] = with_one_nan(into[i] + from[i]);
}

}  // namespace spillway::cpu_optim
#endif  // HWY_ONCE
