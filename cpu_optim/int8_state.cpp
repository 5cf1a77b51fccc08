// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <bit>

#include "cpu_optim/detail/kernel_table.h"
#include "cpu_optim/detail/lossy_run.h"
#include "cpu_optim/elementwise_reference.h"
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

/// The new state of a block on its way through an update.
struct Block {
    alignas(64) float values[most_lossy_planes][block_elements];
};
/// Its largest magnitudes, lane by lane, as bits. Apart from the block, so that they stay in
/// registers.
struct Largest {
    BitsVector state[most_lossy_planes];
    BitsVector master;
};

/// A square is 0 or more, or NaN, which is larger than any number in bits, too.
template <MomentKind kind>
HWY_INLINE BitsVector magnitude_bits(FloatVector value) {
    return hn::BitCast(BitsTag(), kind == MomentKind::mean ? hn::Abs(value) : value);
}

/// Decodes, updates and stores the weights of the vectors that one vector of words has in its byte
/// `byte`.
template <int byte, GradientType gradient_type, class Coefficients, class Rule, class Master>
HWY_INLINE void update_byte(const Rule& rule, const Master& master, const void* gradient,
                            const BitsVector* words, const FloatVector* bias, std::size_t begin,
                            std::size_t word, Block& block, Largest& largest) {
    constexpr auto kinds = detail::kinds_of<Coefficients>;
    constexpr std::size_t offset = std::size_t{byte} * block_words;
    const FloatTag f;
    const BitsTag d;
    const std::size_t at = begin + offset + word;
    FloatVector state[most_state_planes];
    if constexpr (Rule::planes > 0)
        state[0] = decode_words<kinds[0], byte>(words[0], bias[0]);
    if constexpr (Rule::planes > 1)
        state[1] = decode_words<kinds[1], byte>(words[1], bias[1]);
    auto w = master.load(at);
    rule.update(w, state, load_gradient<gradient_type>(f, gradient, at));
    master.store(w, at);
    largest.master = hn::Max(largest.master, hn::BitCast(d, hn::Abs(w)));
    if constexpr (Rule::planes > 0) {
        hn::StoreU(state[0], f, block.values[0] + offset + word);
        largest.state[0] = hn::Max(largest.state[0], magnitude_bits<kinds[0]>(state[0]));
    }
    if constexpr (Rule::planes > 1) {
        hn::StoreU(state[1], f, block.values[1] + offset + word);
        largest.state[1] = hn::Max(largest.state[1], magnitude_bits<kinds[1]>(state[1]));
    }
}

/// The new codes of one vector of words in each plane.
template <class Coefficients, class Rule, int byte>
HWY_INLINE void encode_byte(const Block& block, const FloatVector* bias, BitsVector random,
                            std::size_t word, BitsVector* words) {
    constexpr auto kinds = detail::kinds_of<Coefficients>;
    const std::size_t at = std::size_t{byte} * block_words + word;
    if constexpr (Rule::planes > 0)
        words[0] =
            hn::Or(words[0], encode_words<kinds[0], byte>(
                                 hn::LoadU(FloatTag(), block.values[0] + at), bias[0], random));
    if constexpr (Rule::planes > 1)
        words[1] =
            hn::Or(words[1], encode_words<kinds[1], byte>(
                                 hn::LoadU(FloatTag(), block.values[1] + at), bias[1], random));
}

HWY_INLINE FloatVector bias_of(std::uint8_t scale) {
    return hn::BitCast(FloatTag(), hn::Set(BitsTag(), bias_bits(scale)));
}

/// Makes the NaNs of the new weights of a block one and returns how many are to be counted.
template <class Master>
std::size_t recount_masters(const Master& master, std::size_t begin) {
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

/// Encodes a block's new state at `codes` and `scales` of each plane.
template <class Coefficients, class Rule>
HWY_INLINE void encode_state(const Block& block, const Largest& found, const RandomLanes& random,
                             std::size_t begin, const Int8Pointers& run) {
    constexpr auto kinds = detail::kinds_of<Coefficients>;
    const BitsTag d;
    FloatVector bias[most_lossy_planes];
    std::uint32_t keep[most_lossy_planes];  // 0 in a block of NaN, whose codes are 0
#pragma GCC unroll 2
    for (std::size_t plane = 0; plane < Rule::planes; ++plane) {
        const auto largest = hn::GetLane(hn::MaxOfLanes(d, found.state[plane]));
        const auto scale = scale_of(kinds[plane], largest & 0x7FFFFFFFu);  // a NaN may have a sign
        run.scales[plane][begin / block_elements] = scale;
        bias[plane] = bias_of(scale);
        keep[plane] = scale == nan_scale ? 0 : ~std::uint32_t{0};
    }
    auto place = random.place(begin);
    for (std::size_t word = 0; word < block_words; word += hn::Lanes(d)) {
        BitsVector words[most_lossy_planes] = {hn::Zero(d), hn::Zero(d)};
        encode_byte<Coefficients, Rule, 0>(block, bias, random.hash(place), word, words);
        encode_byte<Coefficients, Rule, 1>(
            block, bias, random.hash(RandomLanes::moved(place, block_words)), word, words);
        encode_byte<Coefficients, Rule, 2>(
            block, bias, random.hash(RandomLanes::moved(place, 2 * block_words)), word, words);
        encode_byte<Coefficients, Rule, 3>(
            block, bias, random.hash(RandomLanes::moved(place, 3 * block_words)), word, words);
        place = RandomLanes::moved(place, hn::Lanes(d));
#pragma GCC unroll 2
        for (std::size_t plane = 0; plane < Rule::planes; ++plane) {
            const auto kept = hn::And(words[plane], hn::Set(d, keep[plane]));
            const hn::Repartition<std::uint8_t, BitsTag> bytes;
            hn::StoreU(hn::BitCast(bytes, kept), bytes, run.codes[plane] + begin + 4 * word);
        }
    }
}

/// Updates the whole block that starts at element `begin` of the run.
template <GradientType gradient_type, class Coefficients, class Rule, class Master>
HWY_INLINE std::size_t update_block(const Rule& rule, const Master& master,
                                    const RandomLanes& random, const Int8Pointers& run,
                                    std::size_t begin) {
    const BitsTag d;
    const hn::Repartition<std::uint8_t, BitsTag> bytes;
    Block block;
    Largest found{{hn::Zero(d), hn::Zero(d)}, hn::Zero(d)};
    FloatVector bias[most_lossy_planes];
#pragma GCC unroll 2
    for (std::size_t plane = 0; plane < Rule::planes; ++plane)
        bias[plane] = bias_of(run.scales[plane][begin / block_elements]);
    for (std::size_t word = 0; word < block_words; word += hn::Lanes(d)) {
        BitsVector words[most_lossy_planes];
#pragma GCC unroll 2
        for (std::size_t plane = 0; plane < Rule::planes; ++plane)
            words[plane] = hn::BitCast(d, hn::LoadU(bytes, run.codes[plane] + begin + 4 * word));
        update_byte<0, gradient_type, Coefficients>(rule, master, run.gradient, words, bias, begin,
                                                    word, block, found);
        update_byte<1, gradient_type, Coefficients>(rule, master, run.gradient, words, bias, begin,
                                                    word, block, found);
        update_byte<2, gradient_type, Coefficients>(rule, master, run.gradient, words, bias, begin,
                                                    word, block, found);
        update_byte<3, gradient_type, Coefficients>(rule, master, run.gradient, words, bias, begin,
                                                    word, block, found);
    }
    encode_state<Coefficients, Rule>(block, found, random, begin, run);
    const auto largest = hn::GetLane(hn::MaxOfLanes(d, found.master));
    return HWY_LIKELY(largest <= Master::largest_bits) ? 0 : recount_masters(master, begin);
}

struct Int8Loop {
    using Run = Int8Pointers;
    static constexpr bool has_every_rule = false;

    template <GradientType gradient_type, class Coefficients, class Rule, class Master>
    static Progress update(const Rule& rule, const Master& master, const Run& run) {
        const RandomLanes random(run.key, run.first_element);
        // Copies, since the compiler must take it that a store through the pointers changes them.
        const Master weights = master;
        const Run planes = run;
        const std::size_t end = run.elements / block_elements * block_elements;
        std::size_t nonfinite = 0;
        for (std::size_t begin = 0; begin < end; begin += block_elements)
            nonfinite +=
                update_block<gradient_type, Coefficients>(rule, weights, random, planes, begin);
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
    constexpr auto kinds = detail::kinds_of<Coefficients>;
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

void require_block(std::uint64_t first_element) {
    if (first_element % block_elements != 0)
        throw std::invalid_argument(
            fmt::format("update_run: a run of int8 state starts at element {} of its tensor: it "
                        "must start at a multiple of {}",
                        first_element, block_elements));
}

template <class Coefficients>
std::size_t update_by_rule(Isa isa, const Coefficients& coefficients, const RoundingStream& stream,
                           const Int8Run& run) {
    const auto kernel = kernels<Coefficients>.at(isa);
    if (run.elements == 0)
        return 0;
    detail::require_lossy(coefficients, StateFormat::int8, run);
    require_block(run.first_element);
    const std::size_t planes = state_planes(coefficients);
    for (std::size_t plane = 0; plane < planes; ++plane) {
        detail::require_state_plane("codes", plane, run.codes[plane]);
        detail::require_state_plane("scales", plane, run.scales[plane]);
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

}  // namespace spillway::cpu_optim
#endif  // HWY_ONCE
