// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <bit>

#include "cpu_optim/detail/kernel_table.h"
#include "cpu_optim/detail/lossy_run.h"
#include "cpu_optim/elementwise_reference.h"
#include "cpu_optim/layerwise.h"
#include "cpu_optim/layerwise_reference.h"
#include "cpu_optim/lossy_state.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_optim/int8_state.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu_optim/detail/elementwise_dispatch-inl.h"
#include "cpu_optim/detail/gradient_load-inl.h"
#include "cpu_optim/detail/moment_codec-inl.h"

#if SPILLWAY_VECTOR_TARGET
HWY_BEFORE_NAMESPACE();
namespace spillway::cpu_optim {
namespace HWY_NAMESPACE {
namespace {

using detail::Int8Pointers;
using detail::Progress;

constexpr std::size_t block_words = block_elements / 4;

/// How far ahead memory is asked for: an update goes through a block part by part, in an order that
/// processors do not foresee.
constexpr std::size_t elements_ahead = 2 * block_elements;

/// A rule whose update has two halves: the one that makes the new state hands a vector on to the
/// one that moves the weight.
template <class Rule>
inline constexpr bool has_halves = requires {
    &Rule::move_weight;
};

/// The new state of a block on its way through an update, and what a rule hands on.
struct Block {
    alignas(64) float values[most_lossy_planes][block_elements];
    alignas(64) float handed_on[block_elements];
};

/// What the first pass finds out about a block's new values, lane by lane. Apart from the block, so
/// that it stays in registers.
struct Found {
    BitsVector largest[most_lossy_planes];   ///< magnitudes of the state
    BitsVector smallest[most_lossy_planes];  ///< squares

    HWY_INLINE Found()
        : largest{hn::Zero(BitsTag()), hn::Zero(BitsTag())},
          smallest{hn::Set(BitsTag(), ~0u), hn::Set(BitsTag(), ~0u)} {}
};

template <MomentKind kind>
HWY_INLINE void keep_plane(FloatVector value, std::size_t plane, std::size_t at, Block& block,
                           Found& found) {
    const BitsTag d;
    hn::StoreU(value, FloatTag(), block.values[plane] + at);
    if constexpr (kind == MomentKind::mean) {
        found.largest[plane] = hn::Max(found.largest[plane], hn::BitCast(d, hn::Abs(value)));
    } else {
        // A square is 0 or more, or NaN, which is larger than any number in bits, too.
        const auto bits = hn::BitCast(d, value);
        found.largest[plane] = hn::Max(found.largest[plane], bits);
        found.smallest[plane] = hn::Min(found.smallest[plane], bits);
    }
}

/// A block's scale and all that encoding it takes.
template <MomentKind kind>
struct Encoding {
    /// Of a block of which `largest` and `smallest` were found.
    HWY_INLINE Encoding(BitsVector largest, BitsVector smallest)
        : scale{scale_from(largest)},
          bias{scale},
          kept{hn::Set(BitsTag(), scale == nan_scale ? 0u : ~0u)},
          has_zeros{!hn::AllFalse(BitsTag(), hn::Eq(smallest, hn::Zero(BitsTag())))} {}

    HWY_INLINE BitsVector encode(const float* values, const BitsVector* random) const {
        FloatVector value[parts];
#pragma GCC unroll 4
        for (std::size_t part = 0; part < parts; ++part)
            value[part] = hn::LoadU(FloatTag(), values + part * block_words);
        BitsVector codes;
        if constexpr (kind == MomentKind::mean) {
            codes = encode_means(value, bias, random);
        } else {
            codes = encode_squares(value, bias, random);
            if (HWY_UNLIKELY(has_zeros))
                codes = with_zeros(codes, value);
        }
        return hn::And(codes, kept);
    }

    std::uint8_t scale;

  private:
    HWY_INLINE static std::uint8_t scale_from(BitsVector largest) {
        const auto bits = hn::GetLane(hn::MaxOfLanes(BitsTag(), largest));
        return scale_of(kind, bits & 0x7FFFFFFFu);  // a NaN may have a sign
    }

    Bias bias;
    BitsVector kept;  ///< no bit in a block of NaN, whose codes are 0
    bool has_zeros;   ///< squares of 0
};

/// Makes the NaNs of the new weights of a block one and returns how many are to be counted.
template <class Master>
std::size_t recount_masters(Master master, std::size_t begin) {
    const FloatTag f;
    const auto largest = hn::BitCast(f, hn::Set(BitsTag(), Master::largest_bits));
    std::size_t counted = 0;
    for (std::size_t i = 0; i < block_elements; i += hn::Lanes(f)) {
        const auto w = with_one_nan(master.load(begin + i));
        master.store(w, begin + i);
        counted += hn::Lanes(f) - hn::CountTrue(f, hn::Le(hn::Abs(w), largest));
    }
    return counted;
}

/// The update of blocks, each in two passes: the first decodes and updates the state, the second
/// encodes it, which takes the largest of all. A root is waited for in one of them and a division
/// in the other, so that each has enough else to do.
template <GradientType gradient_type, class Coefficients, class Rule, class Master>
class BlockUpdate {
  public:
    HWY_INLINE BlockUpdate(const Rule& rule, const Master& master, const Int8Pointers& run)
        : rule_{rule}, master_{master}, run_{run}, random_(run.key, run.first_element) {}

    /// Of the block that starts at element `begin` of the run; `next`: of one to be asked for.
    /// Returns the masters to be counted.
    HWY_INLINE std::size_t operator()(std::size_t begin, std::size_t next) const {
        const BitsTag d;
        const FloatTag f;
        Block block;
        Found found;
        FloatVector watched = hn::Zero(f);
        const Bias bias[most_lossy_planes] = {bias_of(0, begin), bias_of(1, begin)};
        for (std::size_t word = 0; word < block_words; word += hn::Lanes(d)) {
            ask_for_masters(next + parts * word);
            update_words(begin, word, bias, block, found, watched);
        }
        const Encoding<kinds[0]> first(found.largest[0], found.smallest[0]);
        const Encoding<kinds[1]> second(found.largest[1], found.smallest[1]);
        auto place = random_.place(begin);
        for (std::size_t word = 0; word < block_words; word += hn::Lanes(d)) {
            ask_for_gradients(next + parts * word);
            const BitsVector random[parts] = {
                random_.hash(place), random_.hash(RandomLanes::moved(place, block_words)),
                random_.hash(RandomLanes::moved(place, 2 * block_words)),
                random_.hash(RandomLanes::moved(place, 3 * block_words))};
            place = RandomLanes::moved(place, hn::Lanes(d));
            if constexpr (has_halves<Rule>) {
#pragma GCC unroll 4
                for (std::size_t part = 0; part < parts; ++part)
                    move_part(begin, part * block_words + word, block, watched);
            }
            if constexpr (Rule::planes > 0)
                store_words(0, begin, word, first.encode(block.values[0] + word, random));
            if constexpr (Rule::planes > 1)
                store_words(1, begin, word, second.encode(block.values[1] + word, random));
        }
        if constexpr (Rule::planes > 0)
            run_.scales[0][begin / block_elements] = first.scale;
        if constexpr (Rule::planes > 1)
            run_.scales[1][begin / block_elements] = second.scale;
        return HWY_LIKELY(hn::AllFalse(f, hn::IsNaN(watched))) ? 0
                                                               : recount_masters(master_, begin);
    }

  private:
    static constexpr auto kinds = kinds_of<Coefficients>;

    /// As many elements from `at` on as one step works on. In both passes, or a core would have
    /// more requests than it can keep in one and none in the other.
    HWY_INLINE void ask_for_masters(std::size_t at) const {
        master_.prefetch(at, parts * hn::Lanes(FloatTag()));
    }
    HWY_INLINE void ask_for_gradients(std::size_t at) const {
        const std::size_t elements = parts * hn::Lanes(FloatTag());
        prefetch_gradient<gradient_type>(run_.gradient, at, elements);
#pragma GCC unroll 2
        for (std::size_t plane = 0; plane < Rule::planes; ++plane)
            prefetch(run_.codes[plane], at, elements);
    }
    HWY_INLINE Bias bias_of(std::size_t plane, std::size_t begin) const {
        return Bias(plane < Rule::planes ? run_.scales[plane][begin / block_elements] : zero_scale);
    }
    HWY_INLINE void store_words(std::size_t plane, std::size_t begin, std::size_t word,
                                BitsVector words) const {
        hn::StoreU(hn::BitCast(BytesTag(), words), BytesTag(),
                   run_.codes[plane] + begin + parts * word);
    }
    HWY_INLINE void store_weight(FloatVector w, std::size_t at, FloatVector& watched) const {
        master_.store(w, at);
        watched = hn::MulAdd(Master::watched(w), hn::Zero(FloatTag()), watched);
    }
    HWY_INLINE void update_words(std::size_t begin, std::size_t word, const Bias* bias,
                                 Block& block, Found& found, FloatVector& watched) const {
        BitsVector words[most_lossy_planes];
#pragma GCC unroll 2
        for (std::size_t plane = 0; plane < Rule::planes; ++plane)
            words[plane] = hn::BitCast(
                BitsTag(), hn::LoadU(BytesTag(), run_.codes[plane] + begin + parts * word));
        // Of parts that are decoded together one after the other.
        update_part<0>(begin, word, words, bias, block, found, watched);
        update_part<2>(begin, word, words, bias, block, found, watched);
        update_part<1>(begin, word, words, bias, block, found, watched);
        update_part<3>(begin, word, words, bias, block, found, watched);
    }
    template <int part>
    HWY_INLINE void update_part(std::size_t begin, std::size_t word, const BitsVector* words,
                                const Bias* bias, Block& block, Found& found,
                                FloatVector& watched) const {
        const std::size_t in_block = std::size_t{part} * block_words + word;
        const std::size_t at = begin + in_block;
        FloatVector state[most_state_planes];
        if constexpr (Rule::planes > 0)
            state[0] = decode_part<kinds[0], part>(words[0], bias[0]);
        if constexpr (Rule::planes > 1)
            state[1] = decode_part<kinds[1], part>(words[1], bias[1]);
        const auto gradient = load_gradient<gradient_type>(FloatTag(), run_.gradient, at);
        auto w = master_.load(at);
        if constexpr (has_halves<Rule>) {
            hn::StoreU(rule_.update_state(w, state, gradient), FloatTag(),
                       block.handed_on + in_block);
        } else {
            rule_.update(w, state, gradient);
            store_weight(w, at, watched);
        }
        if constexpr (Rule::planes > 0)
            keep_plane<kinds[0]>(state[0], 0, in_block, block, found);
        if constexpr (Rule::planes > 1)
            keep_plane<kinds[1]>(state[1], 1, in_block, block, found);
    }
    HWY_INLINE void move_part(std::size_t begin, std::size_t in_block, const Block& block,
                              FloatVector& watched) const {
        const FloatTag f;
        const std::size_t at = begin + in_block;
        FloatVector state[most_lossy_planes];
#pragma GCC unroll 2
        for (std::size_t plane = 0; plane < Rule::planes; ++plane)
            state[plane] = hn::LoadU(f, block.values[plane] + in_block);
        auto w = master_.load(at);
        rule_.move_weight(w, state, load_gradient<gradient_type>(f, run_.gradient, at),
                          hn::LoadU(f, block.handed_on + in_block));
        store_weight(w, at, watched);
    }

    // Copies, since the compiler must take it that a store through the pointers changes them.
    Rule rule_;
    Master master_;
    Int8Pointers run_;
    RandomLanes random_;
};

struct Int8Loop {
    using Run = Int8Pointers;
    static constexpr bool has_every_rule = false;

    template <GradientType gradient_type, class Coefficients, class Rule, class Master>
    static Progress update(const Rule& rule, const Master& master, const Run& run) {
        const BlockUpdate<gradient_type, Coefficients, Rule, Master> update_block(rule, master,
                                                                                  run);
        const std::size_t end = run.elements / block_elements * block_elements;
        std::size_t nonfinite = 0;
        for (std::size_t begin = 0; begin < end; begin += block_elements)
            nonfinite += update_block(begin, begin + elements_ahead);
        return {end, nonfinite};
    }
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu_optim
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace spillway::cpu_optim {
namespace {

using detail::Int8Pointers;
using detail::Progress;

template <class Coefficients>
constexpr detail::KernelTable<Progress(const Coefficients&, const Int8Pointers&)> kernels =
    SPILLWAY_LOOP_TABLE(Int8Loop);

/// The reference's second half: one plane of a block's new state, from `codes` and `scale` on.
void encode_plane(MomentKind kind, const float* values, std::size_t count, RoundingKey key,
                  std::uint64_t first_element, std::uint8_t* codes, std::uint8_t* scale) {
    std::uint32_t largest = 0;
    for (std::size_t i = 0; i < count; ++i)
        largest = std::max(largest, std::bit_cast<std::uint32_t>(values[i]) & 0x7FFFFFFFu);
    *scale = scale_of(kind, largest);
    std::fill_n(codes, block_elements, std::uint8_t{0});
    if (*scale == nan_scale)
        return;
    for (std::size_t i = 0; i < count; ++i)
        codes[code_place(i)] = encode(kind, values[i], *scale,
                                      rounding_term(kind, random_bits(key, first_element + i)));
}

/// The reference for the block that starts at element `begin` of the run and has `count` elements:
/// decode, update, find the new scale, encode. Returns how many new masters are to be counted.
template <class Coefficients>
std::size_t update_block_by_reference(const Coefficients& coefficients, const Int8Pointers& run,
                                      std::size_t begin, std::size_t count) {
    constexpr auto kinds = kinds_of<Coefficients>;
    const std::size_t planes = state_planes(coefficients);
    const std::size_t number = begin / block_elements;
    float values[most_lossy_planes][block_elements];
    std::size_t nonfinite = 0;
    for (std::size_t i = 0; i < count; ++i) {
        ElementwiseElement element;
        element.master = detail::master_of(run, begin + i);
        for (std::size_t plane = 0; plane < planes; ++plane)
            element.state[plane] = decode(kinds[plane], run.codes[plane][begin + code_place(i)],
                                          run.scales[plane][number]);
        element = updated(coefficients, element,
                          detail::gradient_element(run.gradient, run.gradient_type, begin + i));
        for (std::size_t plane = 0; plane < planes; ++plane)
            values[plane][i] = element.state[plane];
        nonfinite += detail::store_master(run, element.master, begin + i);
    }
    for (std::size_t plane = 0; plane < planes; ++plane)
        encode_plane(kinds[plane], values[plane], count, run.key, run.first_element + begin,
                     run.codes[plane] + begin, run.scales[plane] + number);
    return nonfinite;
}

template <class Coefficients>
std::size_t update_by_rule(Isa isa, const Coefficients& coefficients, const RoundingStream& stream,
                           const Int8Run& run) {
    const auto kernel = kernels<Coefficients>.at(isa);
    if (run.elements == 0)
        return 0;
    detail::require_lossy(coefficients, StateFormat::int8, run);
    detail::require_block("update_run", run.first_element);
    const std::size_t planes = state_planes(coefficients);
    for (std::size_t plane = 0; plane < planes; ++plane) {
        detail::require_state_plane("update_run", "codes", plane, run.codes[plane]);
        detail::require_state_plane("update_run", "scales", plane, run.scales[plane]);
    }
    std::size_t nonfinite = 0;
    for (std::size_t begin = 0; begin < run.elements;) {
        const auto count =
            detail::elements_of_one_key(run.first_element + begin, run.elements - begin);
        const auto key = rounding_key(stream, run.first_element + begin);
        Int8Pointers part{detail::lossy_pointers(detail::moved(run, begin, count), key), {}, {}};
        for (std::size_t plane = 0; plane < planes; ++plane) {
            part.codes[plane] = run.codes[plane] + begin;
            part.scales[plane] = run.scales[plane] + begin / block_elements;
        }
        Progress progress{.elements = 0, .nonfinite = 0};
        if (kernel != nullptr)
            progress = kernel(coefficients, part);
        for (std::size_t i = progress.elements; i < count; i += block_elements)
            progress.nonfinite += update_block_by_reference(coefficients, part, i,
                                                            std::min(block_elements, count - i));
        nonfinite += progress.nonfinite;
        begin += count;
    }
    return nonfinite;
}

}  // namespace

std::size_t update_run(Isa isa, const ElementwiseCoefficients& coefficients,
                       const RoundingStream& stream, const Int8Run& run) {
    return std::visit([&](const auto& rule) { return update_by_rule(isa, rule, stream, run); },
                      coefficients.rule);
}

std::size_t update_run(Isa isa, const LayerwiseStep& step, const RoundingStream& stream,
                       const Int8Run& run) {
    return std::visit([&](const auto& rule) { return update_by_rule(isa, rule, stream, run); },
                      step.rule);
}

}  // namespace spillway::cpu_optim
#endif  // HWY_ONCE
