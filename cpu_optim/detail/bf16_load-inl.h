// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors

// Compiled once per target: the guard flips with HWY_TARGET_TOGGLE instead of closing for good.
#if defined(SPILLWAY_CPU_OPTIM_BF16_LOAD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_CPU_OPTIM_BF16_LOAD_INL_H
#undef SPILLWAY_CPU_OPTIM_BF16_LOAD_INL_H
#else
#define SPILLWAY_CPU_OPTIM_BF16_LOAD_INL_H
#endif

#include <cstdint>

#include "cpu_optim/detail/split_master-inl.h"
#include "hwy/highway.h"

#if SPILLWAY_VECTOR_TARGET
HWY_BEFORE_NAMESPACE();
namespace spillway::cpu_optim {
namespace HWY_NAMESPACE {
namespace {

/// The upper halves of fp32 values from `half` on.
HWY_INLINE HWY_MAYBE_UNUSED FloatVector load_halves(const std::uint16_t* HWY_RESTRICT half) {
    const BitsTag d;
    if constexpr (hn::MaxLanes(BitsTag()) == 8) {
        // Each half of the vector takes what it needs of 16 bytes that both have.
        const hn::Repartition<std::uint8_t, BitsTag> bytes;
        alignas(32) static constexpr std::uint8_t order[32] = {
            128, 128, 0, 1, 128, 128, 2,  3,  128, 128, 4,  5,  128, 128, 6,  7,
            128, 128, 8, 9, 128, 128, 10, 11, 128, 128, 12, 13, 128, 128, 14, 15};
        const auto both = hn::LoadDup128(hn::Repartition<std::uint16_t, BitsTag>(), half);
        return hn::BitCast(
            FloatTag(), hn::TableLookupBytesOr0(hn::BitCast(bytes, both), hn::Load(bytes, order)));
    } else {
        return hn::BitCast(FloatTag(),
                           hn::ShiftLeft<16>(hn::PromoteTo(d, hn::LoadU(HiTag(), half))));
    }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu_optim
HWY_AFTER_NAMESPACE();
#endif  // SPILLWAY_VECTOR_TARGET

#endif  // per-target guard
