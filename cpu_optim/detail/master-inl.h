// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors

// Compiled once per target: the guard flips with HWY_TARGET_TOGGLE instead of closing for good.
#if defined(SPILLWAY_CPU_OPTIM_MASTER_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_CPU_OPTIM_MASTER_INL_H
#undef SPILLWAY_CPU_OPTIM_MASTER_INL_H
#else
#define SPILLWAY_CPU_OPTIM_MASTER_INL_H
#endif

#include <cstddef>
#include <cstdint>

#include "cpu_optim/detail/gradient_load-inl.h"
#include "cpu_optim/detail/split_master-inl.h"
#include "cpu_optim/split_master.h"
#include "hwy/highway.h"

#if SPILLWAY_VECTOR_TARGET
HWY_BEFORE_NAMESPACE();
namespace spillway::cpu_optim {
namespace HWY_NAMESPACE {
namespace {

/// detail::with_one_nan() of a vector.
HWY_INLINE HWY_MAYBE_UNUSED FloatVector with_one_nan(FloatVector value) {
    const auto quiet_nan = hn::BitCast(FloatTag(), hn::Set(BitsTag(), 0x7FC00000u));
    return hn::IfThenElse(hn::IsNaN(value), quiet_nan, value);
}

/// The weight is fp32 and its own master. `Value` is const where it is only read.
template <class Value = float>
struct WholeMaster {
    Value* HWY_RESTRICT values;

    static constexpr std::uint32_t largest_bits = 0x7F7FFFFFu;  ///< more is counted
    /// Infinite or NaN if `master` is to be counted, and perhaps if it is within half of that.
    static HWY_INLINE FloatVector watched(FloatVector master) { return master; }
    HWY_INLINE FloatVector load(std::size_t i) const { return hn::LoadU(FloatTag(), values + i); }
    HWY_INLINE void store(FloatVector master, std::size_t i) const {
        hn::StoreU(master, FloatTag(), values + i);
    }
    HWY_INLINE void prefetch(std::size_t i, std::size_t elements) const {
        HWY_NAMESPACE::prefetch(values, i * sizeof(float), elements * sizeof(float));
    }
};

template <class Hi = std::uint16_t, class Lo = std::int16_t>
struct HalvedMaster {
    Hi* HWY_RESTRICT weight;
    Lo* HWY_RESTRICT residue;

    static constexpr std::uint32_t largest_bits = largest_split_bits;
    static HWY_INLINE FloatVector watched(FloatVector master) { return hn::Add(master, master); }
    HWY_INLINE FloatVector load(std::size_t i) const {
        return load_master(weight + i, residue + i);
    }
    HWY_INLINE void store(FloatVector master, std::size_t i) const {
        store_master(master, weight + i, residue + i);
    }
    HWY_INLINE void prefetch(std::size_t i, std::size_t elements) const {
        HWY_NAMESPACE::prefetch(weight, i * sizeof(Hi), elements * sizeof(Hi));
        HWY_NAMESPACE::prefetch(residue, i * sizeof(Lo), elements * sizeof(Lo));
    }
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu_optim
HWY_AFTER_NAMESPACE();
#endif  // SPILLWAY_VECTOR_TARGET

#endif  // per-target guard
