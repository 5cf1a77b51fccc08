// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors

// Compiled once per target: the guard flips with HWY_TARGET_TOGGLE instead of closing for good.
#if defined(SPILLWAY_CPU_OPTIM_RANDOM_BITS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_CPU_OPTIM_RANDOM_BITS_INL_H
#undef SPILLWAY_CPU_OPTIM_RANDOM_BITS_INL_H
#else
#define SPILLWAY_CPU_OPTIM_RANDOM_BITS_INL_H
#endif

#include <cstdint>

#include "cpu_optim/detail/split_master-inl.h"
#include "cpu_optim/state_rounding.h"
#include "hwy/highway.h"

#if SPILLWAY_VECTOR_TARGET
HWY_BEFORE_NAMESPACE();
namespace spillway::cpu_optim {
namespace HWY_NAMESPACE {
namespace {

using BitsVector = hn::Vec<BitsTag>;

/// random_bits() of adjacent elements of a tensor.
class RandomLanes {
  public:
    /// Counted from element `first` of the tensor on; all elements have the upper 32 bits that the
    /// key was made for.
    HWY_INLINE RandomLanes(RoundingKey key, std::uint64_t first)
        : first_{key.offset + static_cast<std::uint32_t>(first) * rounding_stride},
          lanes_{hn::Mul(hn::Iota(BitsTag(), 0), hn::Set(BitsTag(), rounding_stride))},
          flip_{hn::Set(BitsTag(), key.flip)},
          multiplier_{hn::Set(BitsTag(), rounding_multiplier)} {}

    HWY_INLINE BitsVector at(std::size_t element) const { return hash(place(element)); }

    /// What hash() takes for the elements from `element` on; moved() goes `elements` further.
    HWY_INLINE BitsVector place(std::size_t element) const {
        const auto start = first_ + static_cast<std::uint32_t>(element) * rounding_stride;
        return hn::Add(hn::Set(BitsTag(), start), lanes_);
    }
    static HWY_INLINE BitsVector moved(BitsVector place, std::size_t elements) {
        const auto by = static_cast<std::uint32_t>(elements) * rounding_stride;
        return hn::Add(place, hn::Set(BitsTag(), by));
    }
    HWY_INLINE BitsVector hash(BitsVector x) const {
        return hn::Mul(hn::Xor(hn::Xor(x, hn::ShiftRight<16>(x)), flip_), multiplier_);
    }

  private:
    std::uint32_t first_;
    BitsVector lanes_, flip_, multiplier_;
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu_optim
HWY_AFTER_NAMESPACE();
#endif  // SPILLWAY_VECTOR_TARGET

#endif  // per-target guard
