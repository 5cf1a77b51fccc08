// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors

// Transcendental functions of sixteen lanes.
// Compiled once per target: the guard flips with HWY_TARGET_TOGGLE instead of closing for good.
#if defined(SPILLWAY_ENGINE_VECTOR_MATH_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_ENGINE_VECTOR_MATH_INL_H
#undef SPILLWAY_ENGINE_VECTOR_MATH_INL_H
#else
#define SPILLWAY_ENGINE_VECTOR_MATH_INL_H
#endif

#include "engine/compute/detail/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::engine {
namespace HWY_NAMESPACE {
namespace {

/// e^x for x <= 87, within 2 units in the last place; 0 below -87; NaN for NaN.
/// x = n ln 2 + r with |r| <= ln 2 / 2, and e^r by its Taylor series to r^7 (the next term is below
/// 5e-9). Adding 1.5 x 2^23 rounds n to an integer that then stands in the low bits of the sum.
HWY_INLINE HWY_MAYBE_UNUSED Lanes exponential(Lanes x) {
    const Lanes rounder = broadcast(12582912.0f);
    const Lanes biased = fma(x, broadcast(1.44269504f), rounder);
    const Lanes n = subtract(biased, rounder);
    // ln 2 in two parts: n times the first is exact.
    Lanes r = fma(n, broadcast(-0.693359375f), x);
    r = fma(n, broadcast(2.12194440e-4f), r);
    Lanes p = broadcast(1.0f / 5040.0f);
    p = fma(p, r, broadcast(1.0f / 720.0f));
    p = fma(p, r, broadcast(1.0f / 120.0f));
    p = fma(p, r, broadcast(1.0f / 24.0f));
    p = fma(p, r, broadcast(1.0f / 6.0f));
    p = fma(p, r, broadcast(0.5f));
    p = fma(p, multiply(r, r), r);
    const Lanes power = add_to_exponent(broadcast(1.0f), biased);
    const Lanes result = fma(p, power, power);
    return zero_below(result, x, broadcast(-87.0f));
}

/// sigmoid(x) = 1 / (1 + e^-x) and sigmoid(-x), both without cancellation.
struct SigmoidPair {
    Lanes value, complement;
};

/// Within 3 units in the last place; NaN for NaN. Below -87 the value stays at e^-87.
HWY_INLINE HWY_MAYBE_UNUSED SigmoidPair sigmoid(Lanes x) {
    const Lanes one = broadcast(1.0f);
    const Lanes bounded = max(broadcast(-87.0f), x);
    const Lanes power = exponential(subtract(broadcast(0.0f), bounded));
    const Lanes value = divide(one, add(one, power));
    return {value, multiply(power, value)};
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace spillway::engine
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
