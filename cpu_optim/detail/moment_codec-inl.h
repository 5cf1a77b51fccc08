// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors

// Compiled once per target: the guard flips with HWY_TARGET_TOGGLE instead of closing for good.
#if defined(SPILLWAY_CPU_OPTIM_MOMENT_CODEC_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_CPU_OPTIM_MOMENT_CODEC_INL_H
#undef SPILLWAY_CPU_OPTIM_MOMENT_CODEC_INL_H
#else
#define SPILLWAY_CPU_OPTIM_MOMENT_CODEC_INL_H
#endif

#include <cstdint>

#include "cpu_optim/detail/random_bits-inl.h"
#include "cpu_optim/moment_codec.h"
#include "hwy/highway.h"

// encode() and decode() of moment_codec.h for vectors. A vector of words holds the codes of four
// vectors of elements, one in each byte; codes are shifted to and from the place where an fp32
// value has them without passing through a byte of their own.

#if SPILLWAY_VECTOR_TARGET
HWY_BEFORE_NAMESPACE();
namespace spillway::cpu_optim {
namespace HWY_NAMESPACE {
namespace {

/// Moves what stands at bit `from` to bit `to`; the rest comes along.
template <int from, int to>
HWY_INLINE BitsVector move_bits(BitsVector bits) {
    if constexpr (from > to)
        return hn::ShiftRight<from - to>(bits);
    else if constexpr (from < to)
        return hn::ShiftLeft<to - from>(bits);
    else
        return bits;
}

template <MomentKind kind>
inline constexpr std::uint32_t steps_mask = (kind == MomentKind::mean ? 0x7Fu : 0xFFu)
                                            << cut_off_bits;

/// decode() of byte `byte` of each word. `bias`: as float and as bits.
template <MomentKind kind, int byte>
HWY_INLINE FloatVector decode_words(BitsVector words, FloatVector bias) {
    const BitsTag d;
    const FloatTag f;
    const auto steps =
        hn::And(move_bits<8 * byte, int{cut_off_bits}>(words), hn::Set(d, steps_mask<kind>));
    const auto magnitude = hn::Sub(hn::BitCast(f, hn::Add(steps, hn::BitCast(d, bias))), bias);
    if constexpr (kind == MomentKind::square)
        return magnitude;
    const auto sign = hn::And(move_bits<8 * byte + 7, 31>(words), hn::Set(d, 0x80000000u));
    return hn::Or(magnitude, hn::BitCast(f, sign));
}

/// encode() as byte `byte` of each word, all other bits 0.
template <MomentKind kind, int byte>
HWY_INLINE BitsVector encode_words(FloatVector value, FloatVector bias, BitsVector random) {
    const BitsTag d;
    const auto magnitude = kind == MomentKind::mean ? hn::Abs(value) : value;
    const auto biased = hn::BitCast(d, hn::Add(magnitude, bias));
    const auto above_bias = hn::Sub(biased, hn::BitCast(d, bias));
    if constexpr (kind == MomentKind::mean) {
        const auto term = hn::And(random, hn::Set(d, cut_off_mask));
        const auto steps = hn::And(hn::Add(above_bias, term), hn::Set(d, steps_mask<kind>));
        const auto sign = hn::And(hn::BitCast(d, value), hn::Set(d, 0x80000000u));
        return hn::Or(move_bits<int{cut_off_bits}, 8 * byte>(steps),
                      move_bits<31, 8 * byte + 7>(sign));
    } else {
        const auto rounded = hn::Add(above_bias, hn::ShiftRight<32 - cut_off_bits>(random));
        // A value above 0 has bits of 1 or more.
        const auto least =
            hn::ShiftLeft<cut_off_bits>(hn::Min(hn::BitCast(d, magnitude), hn::Set(d, 1u)));
        const auto steps = hn::And(hn::Max(rounded, least), hn::Set(d, steps_mask<kind>));
        return move_bits<int{cut_off_bits}, 8 * byte>(steps);
    }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu_optim
HWY_AFTER_NAMESPACE();
#endif  // SPILLWAY_VECTOR_TARGET

#endif  // per-target guard
