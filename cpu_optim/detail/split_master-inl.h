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

/// split() for one vector; returns how many of its elements have no finite hi.
HWY_INLINE HWY_MAYBE_UNUSED std::size_t store_master(FloatVector master,
                                                     std::uint16_t* HWY_RESTRICT hi,
                                                     std::int16_t* HWY_RESTRICT lo) {
    const BitsTag bits;
    const SignedTag integers;
    const auto u = hn::BitCast(bits, master);
    // Both halves fit their 16 bits as signed 32-bit numbers, so the saturating conversions are
    // exact.
    const auto high = hn::ShiftRight<16>(hn::Add(u, hn::Set(bits, 0x8000u)));
    const auto low = hn::ShiftRight<16>(hn::BitCast(integers, hn::ShiftLeft<16>(u)));
    hn::StoreU(hn::DemoteTo(HiTag(), hn::BitCast(integers, high)), HiTag(), hi);
    hn::StoreU(hn::DemoteTo(LoTag(), low), LoTag(), lo);
    const auto magnitude = hn::BitCast(integers, hn::And(u, hn::Set(bits, 0x7FFFFFFFu)));
    return hn::CountTrue(integers, hn::Gt(magnitude, hn::Set(integers, 0x7F7F7FFF)));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu_optim
HWY_AFTER_NAMESPACE();
#endif  // SPILLWAY_VECTOR_TARGET

#endif  // per-target guard
