// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors

// Compiled once per target: the guard flips with HWY_TARGET_TOGGLE instead of closing for good.
#if defined(SPILLWAY_CPU_OPTIM_SPLIT_MASTER_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_CPU_OPTIM_SPLIT_MASTER_INL_H
#undef SPILLWAY_CPU_OPTIM_SPLIT_MASTER_INL_H
#else
#define SPILLWAY_CPU_OPTIM_SPLIT_MASTER_INL_H
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#if SPILLWAY_VECTOR_TARGET
HWY_BEFORE_NAMESPACE();
namespace spillway::cpu_optim {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVector = hn::Vec<FloatTag>;
using BitsTag = hn::RebindToUnsigned<FloatTag>;
using SignedTag = hn::RebindToSigned<FloatTag>;
using HiTag = hn::Rebind<std::uint16_t, FloatTag>;
using LoTag = hn::Rebind<std::int16_t, FloatTag>;

/// join() for one vector.
HWY_INLINE HWY_MAYBE_UNUSED FloatVector load_master(const std::uint16_t* HWY_RESTRICT hi,
                                                    const std::int16_t* HWY_RESTRICT lo) {
    const BitsTag bits;
    const auto high = hn::ShiftLeft<16>(hn::PromoteTo(bits, hn::LoadU(HiTag(), hi)));
    const auto low = hn::BitCast(bits, hn::PromoteTo(SignedTag(), hn::LoadU(LoTag(), lo)));
    return hn::BitCast(FloatTag(), hn::Add(high, low));
}

/// Where the 32-bit lanes of a vector go when each 128-bit block holds two lanes of lo and then two
/// of hi: all lo first.
template <std::size_t lanes>
struct HalvesOrder {
    alignas(64) std::int32_t lane[lanes];

    constexpr HalvesOrder() : lane{} {
        for (std::size_t i = 0; i < lanes / 2; ++i) {
            lane[i] = static_cast<std::int32_t>(i / 2 * 4 + i % 2);
            lane[lanes / 2 + i] = lane[i] + 2;
        }
    }
};

/// split() for one vector. The halves are gathered by bytes: conversions to 16 bits, which saturate
/// and work by 128-bit blocks, would take more instructions.
HWY_INLINE HWY_MAYBE_UNUSED void store_master(FloatVector master, std::uint16_t* HWY_RESTRICT hi,
                                              std::int16_t* HWY_RESTRICT lo) {
    const BitsTag bits;
    const hn::Repartition<std::uint16_t, BitsTag> halves;
    const hn::Repartition<std::uint8_t, BitsTag> bytes;
    alignas(16) static constexpr std::uint8_t block_order[16] = {0, 1, 4, 5, 8,  9,  12, 13,
                                                                 2, 3, 6, 7, 10, 11, 14, 15};
    static constexpr HalvesOrder<hn::MaxLanes(BitsTag())> order;

    const auto u = hn::BitCast(bits, master);
    const auto rounded = hn::BitCast(halves, hn::Add(u, hn::Set(bits, 0x8000u)));
    const auto hi_and_lo = hn::BitCast(bytes, hn::OddEven(rounded, hn::BitCast(halves, u)));
    const auto by_block = hn::TableLookupBytes(hi_and_lo, hn::LoadDup128(bytes, block_order));
    const auto parted = hn::BitCast(
        halves,
        hn::TableLookupLanes(hn::BitCast(bits, by_block), hn::SetTableIndices(bits, order.lane)));
    hn::StoreU(hn::UpperHalf(HiTag(), parted), HiTag(), hi);
    hn::StoreU(hn::BitCast(LoTag(), hn::LowerHalf(HiTag(), parted)), LoTag(), lo);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu_optim
HWY_AFTER_NAMESPACE();
#endif  // SPILLWAY_VECTOR_TARGET

#endif  // per-target guard
