// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors

// Compiled once per target: the guard flips with HWY_TARGET_TOGGLE instead of closing for good.
#if defined(SPILLWAY_CPU_OPTIM_SQUARE_SUM_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_CPU_OPTIM_SQUARE_SUM_INL_H
#undef SPILLWAY_CPU_OPTIM_SQUARE_SUM_INL_H
#else
#define SPILLWAY_CPU_OPTIM_SQUARE_SUM_INL_H
#endif

#include <cstddef>

#include "hwy/highway.h"

#if SPILLWAY_VECTOR_TARGET
HWY_BEFORE_NAMESPACE();
namespace spillway::cpu_optim {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Four lanes on AVX-512 too: gradient_scan.cpp says why.
using DoubleTag = hn::CappedTag<double, 4>;
using NarrowTag = hn::Rebind<float, DoubleTag>;
using DoubleVector = hn::Vec<DoubleTag>;

/// The sixteen lanes of one sum of squares (lane_sum.h).
class SquareSum {
  public:
    HWY_INLINE SquareSum()
        : lanes_{hn::Zero(DoubleTag()), hn::Zero(DoubleTag()), hn::Zero(DoubleTag()),
                 hn::Zero(DoubleTag())} {}
    /// Goes on with a sum that store() left.
    HWY_INLINE explicit SquareSum(const double* HWY_RESTRICT lanes)
        : lanes_{hn::LoadU(DoubleTag(), lanes), hn::LoadU(DoubleTag(), lanes + 4),
                 hn::LoadU(DoubleTag(), lanes + 8), hn::LoadU(DoubleTag(), lanes + 12)} {}

    /// The square of a float is exact in double, so that fusing it with the addition changes no
    /// bit.
    HWY_INLINE void add_row(const float* row) {
#pragma GCC unroll 4
        for (std::size_t part = 0; part < 4; ++part) {
            const auto x = hn::PromoteTo(DoubleTag(), hn::LoadU(NarrowTag(), row + 4 * part));
            lanes_[part] = hn::MulAdd(x, x, lanes_[part]);
        }
    }
    /// The same, and adds each square to an element of `sums`, too.
    HWY_INLINE void add_row(const float* row, double* HWY_RESTRICT sums) {
#pragma GCC unroll 4
        for (std::size_t part = 0; part < 4; ++part) {
            const auto x = hn::PromoteTo(DoubleTag(), hn::LoadU(NarrowTag(), row + 4 * part));
            lanes_[part] = hn::MulAdd(x, x, lanes_[part]);
            double* const at = sums + 4 * part;
            hn::StoreU(hn::MulAdd(x, x, hn::LoadU(DoubleTag(), at)), DoubleTag(), at);
        }
    }
    HWY_INLINE void store(double* HWY_RESTRICT lanes) const {
        for (std::size_t part = 0; part < 4; ++part)
            hn::StoreU(lanes_[part], DoubleTag(), lanes + 4 * part);
    }

  private:
    DoubleVector lanes_[4];
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu_optim
HWY_AFTER_NAMESPACE();
#endif  // SPILLWAY_VECTOR_TARGET

#endif  // per-target guard
