// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors

// Sixteen floats as one value, whatever the width of the machine's vectors, so that a kernel
// written once over them gives the same bits on every instruction set, sums included. On the static
// target they are plain C++ with std::fma: the scalar path. Compiled once per target: the guard
// flips with HWY_TARGET_TOGGLE instead of closing for good.
#if defined(SPILLWAY_ENGINE_LANES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_ENGINE_LANES_INL_H
#undef SPILLWAY_ENGINE_LANES_INL_H
#else
#define SPILLWAY_ENGINE_LANES_INL_H
#endif

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::engine {
namespace HWY_NAMESPACE {
namespace {

constexpr std::size_t lane_count = 16;

// ---------------------------------------------------------------- one register
#if SPILLWAY_VECTOR_TARGET
namespace hn = hwy::HWY_NAMESPACE;
using Tag = hn::FixedTag<float, HWY_TARGET == HWY_AVX3 ? 16 : 8>;
using Register = hn::Vec<Tag>;

HWY_INLINE Register fma_1(Register a, Register b, Register c) {
    return hn::MulAdd(a, b, c);
}
HWY_INLINE Register max_1(Register a, Register b) {
    return hn::Max(a, b);
}
HWY_INLINE Register add_1(Register a, Register b) {
    return hn::Add(a, b);
}
HWY_INLINE Register subtract_1(Register a, Register b) {
    return hn::Sub(a, b);
}
HWY_INLINE Register multiply_1(Register a, Register b) {
    return hn::Mul(a, b);
}
HWY_INLINE Register divide_1(Register a, Register b) {
    return hn::Div(a, b);
}
HWY_INLINE Register broadcast_1(float value) {
    return hn::Set(Tag(), value);
}
HWY_INLINE Register zero_below_1(Register value, Register x, Register bound) {
    return hn::IfThenZeroElse(hn::Lt(x, bound), value);
}
HWY_INLINE Register add_to_exponent_1(Register a, Register biased) {
    const hn::RebindToUnsigned<Tag> bits;
    const auto exponent = hn::ShiftLeft<23>(hn::BitCast(bits, biased));
    return hn::BitCast(Tag(), hn::Add(hn::BitCast(bits, a), exponent));
}
#else
using Register = float;

// std::fma is exact without a fused instruction too; max follows MAXPS: the second if one is NaN.
HWY_INLINE Register fma_1(Register a, Register b, Register c) {
    return std::fma(a, b, c);
}
HWY_INLINE Register max_1(Register a, Register b) {
    return a > b ? a : b;
}
HWY_INLINE Register add_1(Register a, Register b) {
    return a + b;
}
HWY_INLINE Register subtract_1(Register a, Register b) {
    return a - b;
}
HWY_INLINE Register multiply_1(Register a, Register b) {
    return a * b;
}
HWY_INLINE Register divide_1(Register a, Register b) {
    return a / b;
}
HWY_INLINE Register broadcast_1(float value) {
    return value;
}
HWY_INLINE Register zero_below_1(Register value, Register x, Register bound) {
    return x < bound ? 0.0f : value;
}
HWY_INLINE Register add_to_exponent_1(Register a, Register biased) {
    const std::uint32_t exponent = std::bit_cast<std::uint32_t>(biased) << 23;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(a) + exponent);
}
#endif

// ---------------------------------------------------------------- sixteen lanes
#undef SPILLWAY_LANES_BINARY
#undef SPILLWAY_LANES_TERNARY
#if !SPILLWAY_VECTOR_TARGET
struct Lanes {
    float all[lane_count];
};
#define SPILLWAY_LANES_BINARY(name)                            \
    HWY_INLINE HWY_MAYBE_UNUSED Lanes name(Lanes a, Lanes b) { \
        for (std::size_t i = 0; i < lane_count; ++i)           \
            a.all[i] = name##_1(a.all[i], b.all[i]);           \
        return a;                                              \
    }
#define SPILLWAY_LANES_TERNARY(name)                                    \
    HWY_INLINE HWY_MAYBE_UNUSED Lanes name(Lanes a, Lanes b, Lanes c) { \
        for (std::size_t i = 0; i < lane_count; ++i)                    \
            a.all[i] = name##_1(a.all[i], b.all[i], c.all[i]);          \
        return a;                                                       \
    }
HWY_INLINE HWY_MAYBE_UNUSED Lanes broadcast(float value) {
    Lanes lanes;
    for (float& lane : lanes.all)
        lane = value;
    return lanes;
}
HWY_INLINE HWY_MAYBE_UNUSED Lanes load(const float* from) {
    Lanes lanes;
    for (std::size_t i = 0; i < lane_count; ++i)
        lanes.all[i] = from[i];
    return lanes;
}
HWY_INLINE HWY_MAYBE_UNUSED void store(float* to, const Lanes& a) {
    for (std::size_t i = 0; i < lane_count; ++i)
        to[i] = a.all[i];
}
#elif HWY_TARGET == HWY_AVX3
struct Lanes {
    Register all;
};
#define SPILLWAY_LANES_BINARY(name)                            \
    HWY_INLINE HWY_MAYBE_UNUSED Lanes name(Lanes a, Lanes b) { \
        return {name##_1(a.all, b.all)};                       \
    }
#define SPILLWAY_LANES_TERNARY(name)                                    \
    HWY_INLINE HWY_MAYBE_UNUSED Lanes name(Lanes a, Lanes b, Lanes c) { \
        return {name##_1(a.all, b.all, c.all)};                         \
    }
HWY_INLINE HWY_MAYBE_UNUSED Lanes broadcast(float value) {
    return {broadcast_1(value)};
}
HWY_INLINE HWY_MAYBE_UNUSED Lanes load(const float* from) {
    return {hn::LoadU(Tag(), from)};
}
HWY_INLINE HWY_MAYBE_UNUSED void store(float* to, Lanes a) {
    hn::StoreU(a.all, Tag(), to);
}
#else
struct Lanes {
    Register low, high;
};
#define SPILLWAY_LANES_BINARY(name)                                \
    HWY_INLINE HWY_MAYBE_UNUSED Lanes name(Lanes a, Lanes b) {     \
        return {name##_1(a.low, b.low), name##_1(a.high, b.high)}; \
    }
#define SPILLWAY_LANES_TERNARY(name)                                              \
    HWY_INLINE HWY_MAYBE_UNUSED Lanes name(Lanes a, Lanes b, Lanes c) {           \
        return {name##_1(a.low, b.low, c.low), name##_1(a.high, b.high, c.high)}; \
    }
HWY_INLINE HWY_MAYBE_UNUSED Lanes broadcast(float value) {
    return {broadcast_1(value), broadcast_1(value)};
}
HWY_INLINE HWY_MAYBE_UNUSED Lanes load(const float* from) {
    return {hn::LoadU(Tag(), from), hn::LoadU(Tag(), from + 8)};
}
HWY_INLINE HWY_MAYBE_UNUSED void store(float* to, Lanes a) {
    hn::StoreU(a.low, Tag(), to);
    hn::StoreU(a.high, Tag(), to + 8);
}
#endif

SPILLWAY_LANES_BINARY(add)
SPILLWAY_LANES_BINARY(subtract)
SPILLWAY_LANES_BINARY(multiply)
SPILLWAY_LANES_BINARY(divide)
/// The larger; the second if either is NaN.
SPILLWAY_LANES_BINARY(max)
/// a * b + c, rounded once.
SPILLWAY_LANES_TERNARY(fma)
/// 0 where x < bound (not where x is NaN), else value.
SPILLWAY_LANES_TERNARY(zero_below)
/// a * 2^n, where n is the integer in the low bits of the representation of the second operand; a
/// and the result must be normal numbers.
SPILLWAY_LANES_BINARY(add_to_exponent)

// ---------------------------------------------------------------- ends of rows, sums
/// The first `count` < lane_count lanes; `filler` in the rest.
HWY_INLINE HWY_MAYBE_UNUSED Lanes load_part(const float* from, std::size_t count, float filler) {
    float lanes[lane_count];
    for (std::size_t i = 0; i < lane_count; ++i)
        lanes[i] = i < count ? from[i] : filler;
    return load(lanes);
}

HWY_INLINE HWY_MAYBE_UNUSED void store_part(float* to, Lanes a, std::size_t count) {
    float lanes[lane_count];
    store(lanes, a);
    for (std::size_t i = 0; i < count; ++i)
        to[i] = lanes[i];
}

/// Lanes pairwise: i and i + 8, then i and i + 4, i + 2, i + 1.
HWY_INLINE HWY_MAYBE_UNUSED float sum_lanes(Lanes a) {
    float lanes[lane_count];
    store(lanes, a);
    for (std::size_t half = lane_count / 2; half > 0; half /= 2)
        for (std::size_t i = 0; i < half; ++i)
            lanes[i] += lanes[i + half];
    return lanes[0];
}

HWY_INLINE HWY_MAYBE_UNUSED float max_lanes(Lanes a) {
    float lanes[lane_count];
    store(lanes, a);
    float largest = lanes[0];
    for (std::size_t i = 1; i < lane_count; ++i)
        largest = largest > lanes[i] ? largest : lanes[i];
    return largest;
}

/// Lanes i .. i + 15 of a row of `count` elements; `filler` for those behind its end. Walking a row
/// so handles its ragged end.
HWY_INLINE HWY_MAYBE_UNUSED Lanes load_of(const float* row, std::size_t i, std::size_t count,
                                          float filler = 0.0f) {
    return i + lane_count <= count ? load(row + i) : load_part(row + i, count - i, filler);
}

HWY_INLINE HWY_MAYBE_UNUSED void store_of(float* row, std::size_t i, std::size_t count, Lanes a) {
    if (i + lane_count <= count)
        store(row + i, a);
    else
        store_part(row + i, a, count - i);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace spillway::engine
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
