// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors

// Compiled once per target: the guard flips with HWY_TARGET_TOGGLE instead of closing for good.
#if defined(SPILLWAY_CPU_OPTIM_UPDATE_ADJACENT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_CPU_OPTIM_UPDATE_ADJACENT_INL_H
#undef SPILLWAY_CPU_OPTIM_UPDATE_ADJACENT_INL_H
#else
#define SPILLWAY_CPU_OPTIM_UPDATE_ADJACENT_INL_H
#endif

#include <algorithm>
#include <cstddef>

#include "cpu_optim/detail/elementwise_rules-inl.h"
#include "cpu_optim/detail/elementwise_run.h"
#include "cpu_optim/detail/gradient_load-inl.h"
#include "cpu_optim/detail/master-inl.h"
#include "cpu_optim/elementwise.h"

#if SPILLWAY_VECTOR_TARGET
HWY_BEFORE_NAMESPACE();
namespace spillway::cpu_optim {
namespace HWY_NAMESPACE {
namespace {

/// Makes the NaNs of one vector one; returns how many of its masters are to be counted.
template <class Rule>
HWY_INLINE std::size_t make_one_nan(FloatVector& w, FloatVector* state, FloatVector largest) {
    w = with_one_nan(w);
#pragma GCC unroll 3
    for (std::size_t plane = 0; plane < Rule::planes; ++plane)
        state[plane] = with_one_nan(state[plane]);
    const FloatTag d;
    return hn::Lanes(d) - hn::CountTrue(d, hn::Le(hn::Abs(w), largest));
}

/// Updates `count` adjacent vectors from element `i` on, and returns how many of their masters are
/// to be counted. Almost always none is and no value is NaN: one comparison finds that out for all
/// of them, and only else the NaNs are made one and the masters counted. `State` is where the
/// planes of state are and how they are read and written, of `count` vectors at once.
template <std::size_t count, GradientType gradient_type, class Rule, class Master, class State>
HWY_INLINE std::size_t update_adjacent(const Rule& rule, const Master& master,
                                       const void* HWY_RESTRICT gradient, const State& planes,
                                       std::size_t i) {
    const FloatTag d;
    const std::size_t lanes = hn::Lanes(d);
    const auto largest = hn::BitCast(d, hn::Set(BitsTag(), Master::largest_bits));
    FloatVector w[count], state[count][most_state_planes];
    planes.template load<Rule::planes, count>(state, i);
#pragma GCC unroll 2
    for (std::size_t n = 0; n < count; ++n) {
        const std::size_t at = i + n * lanes;
        w[n] = master.load(at);
        rule.update(w[n], state[n], load_gradient<gradient_type>(d, gradient, at));
    }
    auto is_usual = hn::Le(hn::Abs(w[0]), largest);
#pragma GCC unroll 2
    for (std::size_t n = 0; n < count; ++n) {
        is_usual = hn::And(is_usual, hn::Le(hn::Abs(w[n]), largest));
#pragma GCC unroll 3
        for (std::size_t plane = 0; plane < Rule::planes; ++plane)
            if constexpr (!Rule::weight_shows_nan)
                is_usual = hn::And(is_usual, hn::Eq(state[n][plane], state[n][plane]));
    }
    std::size_t counted = 0;
    if (HWY_UNLIKELY(!hn::AllTrue(d, is_usual))) {
#pragma GCC unroll 2
        for (std::size_t n = 0; n < count; ++n)
            counted += make_one_nan<Rule>(w[n], state[n], largest);
    }
    planes.template store<Rule::planes, count>(state, i);
#pragma GCC unroll 2
    for (std::size_t n = 0; n < count; ++n)
        master.store(w[n], i + n * lanes);
    return counted;
}

/// How far ahead of an update its streams are asked for; 0: not at all. Measured: without, two
/// cores of an Emerald Rapids Xeon update at 47 GB/s, with it at 53. On Zen 3, which takes the
/// kernels of AVX2, it cost 10 to 20 %.
constexpr std::size_t elements_ahead = HWY_TARGET <= HWY_AVX3 ? 512 : 0;

/// The one loop of every rule, master layout and gradient type, over the whole vectors of a run.
/// Two vectors at a time: the second has work while the first waits for its root and division.
template <GradientType gradient_type, class Rule, class Master, class State>
HWY_INLINE detail::Progress update_vectors(const Rule& rule, const Master& master,
                                           const void* HWY_RESTRICT gradient, const State& planes,
                                           std::size_t elements) {
    const std::size_t lanes = hn::Lanes(FloatTag());
    std::size_t nonfinite = 0;
    std::size_t i = 0;
    for (; i + 2 * lanes <= elements; i += 2 * lanes) {
        if constexpr (elements_ahead > 0) {
            const std::size_t ahead = i + elements_ahead;
            master.prefetch(ahead, 2 * lanes);
            planes.template prefetch<Rule::planes>(ahead, 2 * lanes);
            prefetch_gradient<gradient_type>(gradient, ahead, 2 * lanes);
        }
        nonfinite += update_adjacent<2, gradient_type>(rule, master, gradient, planes, i);
    }
    if (i + lanes <= elements) {
        nonfinite += update_adjacent<1, gradient_type>(rule, master, gradient, planes, i);
        i += lanes;
    }
    return {i, nonfinite};
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu_optim
HWY_AFTER_NAMESPACE();
#endif  // SPILLWAY_VECTOR_TARGET

#endif  // per-target guard
