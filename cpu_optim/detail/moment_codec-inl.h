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
// vectors of elements, "parts", one in each byte. What can be done to two or four parts at once, in
// lanes of 16 or 8 bits, is: that is where the instructions are saved.

#if SPILLWAY_VECTOR_TARGET
HWY_BEFORE_NAMESPACE();
namespace spillway::cpu_optim {
namespace HWY_NAMESPACE {
namespace {

using HalvesTag = hn::Repartition<std::uint16_t, BitsTag>;
using BytesTag = hn::Repartition<std::uint8_t, BitsTag>;

/// Parts of one vector of words.
inline constexpr int parts = 4;

/// A block's bias in every form that is needed.
struct Bias {
    HWY_INLINE explicit Bias(std::uint8_t scale)
        : value{hn::BitCast(FloatTag(), hn::Set(BitsTag(), bias_bits(scale)))},
          halves{hn::Set(HalvesTag(), static_cast<std::uint16_t>(bias_bits(scale) >> 16))},
          codes{hn::Set(BytesTag(),
                        static_cast<std::uint8_t>(bias_bits(scale) >> cut_off_bits & 0xFFu))} {}

    FloatVector value;
    hn::Vec<HalvesTag> halves;  ///< its upper half in each half
    hn::Vec<BytesTag> codes;    ///< what its bits are where those of a code are
};

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

/// decode() of byte `part` of each word. The bias is added to two parts at once, as upper halves of
/// fp32 values: to those of bytes 0 and 2, or of bytes 1 and 3.
template <MomentKind kind, int part>
HWY_INLINE FloatVector decode_part(BitsVector words, const Bias& bias) {
    constexpr int place = int{cut_off_bits} - 16;  // of a code in a half
    constexpr unsigned mask = kind == MomentKind::mean ? 0x7F : 0xFF;
    const BitsTag d;
    const HalvesTag halves;
    const auto codes = hn::BitCast(halves, words);
    const auto steps =
        part % 2 == 0 ? hn::ShiftLeft<place>(hn::And(codes, hn::Set(halves, std::uint16_t{mask})))
                      : hn::And(hn::ShiftRight<8 - place>(codes),
                                hn::Set(halves, std::uint16_t{mask << place}));
    const auto biased = hn::BitCast(d, hn::Add(steps, bias.halves));
    const auto own =
        part < 2 ? hn::ShiftLeft<16>(biased) : hn::And(biased, hn::Set(d, 0xFFFF0000u));
    const auto magnitude = hn::Sub(hn::BitCast(FloatTag(), own), bias.value);
    if constexpr (kind == MomentKind::square)
        return magnitude;
    const auto sign = hn::And(move_bits<8 * part + 7, 31>(words), hn::Set(d, 0x80000000u));
    return hn::Or(magnitude, hn::BitCast(FloatTag(), sign));
}

/// Bits `from` to `from` + 7 of each of four parts, as the bytes of one vector of words.
template <int from>
HWY_INLINE hn::Vec<BytesTag> gather_bytes(const BitsVector* part) {
    const BytesTag bytes;
    const HalvesTag halves;
    const auto low = hn::OddEven(hn::BitCast(bytes, move_bits<from, 8>(part[1])),
                                 hn::BitCast(bytes, move_bits<from, 0>(part[0])));
    const auto high = hn::OddEven(hn::BitCast(bytes, move_bits<from, 24>(part[3])),
                                  hn::BitCast(bytes, move_bits<from, 16>(part[2])));
    return hn::BitCast(bytes, hn::OddEven(hn::BitCast(halves, high), hn::BitCast(halves, low)));
}

/// The bits of magnitude and bias after the addition of the random term: encode() of a mean.
HWY_INLINE BitsVector rounded_bits(FloatVector magnitude, const Bias& bias, BitsVector term) {
    return hn::Add(hn::BitCast(BitsTag(), hn::Add(magnitude, bias.value)), term);
}

/// encode() of four parts of means, from the arrays `value` and `random`.
HWY_INLINE BitsVector encode_means(const FloatVector* value, const Bias& bias,
                                   const BitsVector* random) {
    const BitsTag d;
    const BytesTag bytes;
    BitsVector rounded[parts], bits[parts];
#pragma GCC unroll 4
    for (int part = 0; part < parts; ++part) {
        bits[part] = hn::BitCast(d, value[part]);
        rounded[part] = rounded_bits(hn::Abs(value[part]), bias,
                                     hn::And(random[part], hn::Set(d, cut_off_mask)));
    }
    const auto steps = hn::Sub(gather_bytes<int{cut_off_bits}>(rounded), bias.codes);
    const auto signs = gather_bytes<24>(bits);
    return hn::BitCast(
        d, hn::Or(hn::And(steps, hn::Set(bytes, 0x7F)), hn::And(signs, hn::Set(bytes, 0x80))));
}

/// encode() of four parts of squares, but that of 0 becomes 1, too.
HWY_INLINE BitsVector encode_squares(const FloatVector* value, const Bias& bias,
                                     const BitsVector* random) {
    const BytesTag bytes;
    BitsVector rounded[parts];
#pragma GCC unroll 4
    for (int part = 0; part < parts; ++part)
        rounded[part] =
            rounded_bits(value[part], bias, hn::ShiftRight<32 - int{cut_off_bits}>(random[part]));
    const auto steps = hn::Sub(gather_bytes<int{cut_off_bits}>(rounded), bias.codes);
    return hn::BitCast(BitsTag(), hn::Max(steps, hn::Set(bytes, 1)));
}

/// `codes` of four parts of squares with those of 0 back at 0.
HWY_INLINE BitsVector with_zeros(BitsVector codes, const FloatVector* value) {
    const BitsTag d;
    const auto cleared = [&](int part) {
        return hn::VecFromMask(d, hn::Eq(hn::BitCast(d, value[part]), hn::Zero(d)));
    };
    const BitsVector zeros[parts] = {cleared(0), cleared(1), cleared(2), cleared(3)};
    return hn::AndNot(hn::BitCast(d, gather_bytes<0>(zeros)), codes);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu_optim
HWY_AFTER_NAMESPACE();
#endif  // SPILLWAY_VECTOR_TARGET

#endif  // per-target guard
