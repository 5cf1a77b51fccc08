// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/split_master.h"

#include "cpu_optim/detail/kernel_table.h"
#include "cpu_optim/detail/require_same_length.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_optim/split_master.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu_optim/detail/split_master-inl.h"

#if SPILLWAY_VECTOR_TARGET
HWY_BEFORE_NAMESPACE();
namespace spillway::cpu_optim {
namespace HWY_NAMESPACE {
namespace {

std::size_t join_whole_vectors(const std::uint16_t* HWY_RESTRICT hi,
                               const std::int16_t* HWY_RESTRICT lo, float* HWY_RESTRICT out,
                               std::size_t elements) {
    const FloatTag floats;
    const std::size_t lanes = hn::Lanes(floats);
    std::size_t i = 0;
    for (; i + lanes <= elements; i += lanes)
        hn::StoreU(load_master(hi + i, lo + i), floats, out + i);
    return i;
}

std::size_t split_whole_vectors(const float* HWY_RESTRICT master, std::uint16_t* HWY_RESTRICT hi,
                                std::int16_t* HWY_RESTRICT lo, std::size_t elements,
                                std::size_t* HWY_RESTRICT without_finite_hi) {
    const FloatTag floats;
    const std::size_t lanes = hn::Lanes(floats);
    std::size_t i = 0;
    std::size_t bad = 0;
    const auto largest = hn::BitCast(floats, hn::Set(BitsTag(), largest_split_bits));
    for (; i + lanes <= elements; i += lanes) {
        const auto values = hn::LoadU(floats, master + i);
        store_master(values, hi + i, lo + i);
        bad += lanes - hn::CountTrue(floats, hn::Le(hn::Abs(values), largest));
    }
    *without_finite_hi = bad;
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

using JoinKernel = std::size_t(const std::uint16_t*, const std::int16_t*, float*, std::size_t);
using SplitKernel = std::size_t(const float*, std::uint16_t*, std::int16_t*, std::size_t,
                                std::size_t*);

constexpr detail::KernelTable<JoinKernel> join_kernels = SPILLWAY_KERNEL_TABLE(join_whole_vectors);
constexpr detail::KernelTable<SplitKernel> split_kernels =
    SPILLWAY_KERNEL_TABLE(split_whole_vectors);

}  // namespace

void join_master(Isa isa, std::span<const std::uint16_t> hi, std::span<const std::int16_t> lo,
                 std::span<float> out) {
    detail::require_same_length("join_master", "lo", lo.size(), hi.size());
    detail::require_same_length("join_master", "out", out.size(), hi.size());
    std::size_t i = 0;
    if (const auto kernel = join_kernels.at(isa))
        i = kernel(hi.data(), lo.data(), out.data(), hi.size());
    for (; i < hi.size(); ++i)
        out[i] = join({hi[i], lo[i]});
}

std::size_t split_master(Isa isa, std::span<const float> master, std::span<std::uint16_t> hi,
                         std::span<std::int16_t> lo) {
    detail::require_same_length("split_master", "hi", hi.size(), master.size());
    detail::require_same_length("split_master", "lo", lo.size(), master.size());
    std::size_t i = 0;
    std::size_t without_finite_hi = 0;
    if (const auto kernel = split_kernels.at(isa))
        i = kernel(master.data(), hi.data(), lo.data(), master.size(), &without_finite_hi);
    for (; i < master.size(); ++i) {
        const SplitWeight weight = split(master[i]);
        hi[i] = weight.hi;
        lo[i] = weight.lo;
        without_finite_hi += has_finite_hi(master[i]) ? 0u : 1u;
    }
    return without_finite_hi;
}

}  // namespace spillway::cpu_optim
#endif  // HWY_ONCE
