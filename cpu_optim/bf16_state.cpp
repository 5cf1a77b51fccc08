// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/detail/kernel_table.h"
#include "cpu_optim/detail/lossy_run.h"
#include "cpu_optim/elementwise_reference.h"
#include "cpu_optim/float_formats.h"
#include "cpu_optim/layerwise.h"
#include "cpu_optim/layerwise_reference.h"
#include "cpu_optim/lossy_state.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_optim/bf16_state.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu_optim/detail/bf16_load-inl.h"
#include "cpu_optim/detail/elementwise_dispatch-inl.h"
#include "cpu_optim/detail/random_bits-inl.h"
#include "cpu_optim/detail/update_adjacent-inl.h"

#if SPILLWAY_VECTOR_TARGET
HWY_BEFORE_NAMESPACE();
namespace spillway::cpu_optim {
namespace HWY_NAMESPACE {
namespace {

using detail::Bf16Pointers;
using detail::Progress;

/// Planes of bf16: means are rounded to nearest even, squares with an element's random number.
template <class Coefficients>
struct Bf16State {
    std::uint16_t* planes[most_lossy_planes];
    RandomLanes random;

    template <std::size_t plane_count, std::size_t count>
    HWY_INLINE void load(FloatVector (*state)[most_state_planes], std::size_t at) const {
#pragma GCC unroll 2
        for (std::size_t n = 0; n < count; ++n)
#pragma GCC unroll 2
            for (std::size_t plane = 0; plane < plane_count; ++plane)
                state[n][plane] = load_halves(planes[plane] + at + n * hn::Lanes(FloatTag()));
    }
    template <std::size_t plane_count>
    HWY_INLINE void prefetch(std::size_t at, std::size_t elements) const {
#pragma GCC unroll 2
        for (std::size_t plane = 0; plane < plane_count; ++plane)
            HWY_NAMESPACE::prefetch(planes[plane], at * sizeof(std::uint16_t),
                                    elements * sizeof(std::uint16_t));
    }
    template <std::size_t plane_count, std::size_t count>
    HWY_INLINE void store(const FloatVector (*state)[most_state_planes], std::size_t at) const {
        if constexpr (plane_count > 0)
            store_plane<0, count>(state, at);
        if constexpr (plane_count > 1)
            store_plane<1, count>(state, at);
    }

  private:
    template <std::size_t plane, std::size_t count>
    HWY_INLINE void store_plane(const FloatVector (*state)[most_state_planes],
                                std::size_t at) const {
        constexpr auto kind = kinds_of<Coefficients>[plane];
        const std::size_t lanes = hn::Lanes(FloatTag());
        const auto place = random.place(at);
        const auto first = rounded<kind>(state[0][plane], place);
        if constexpr (count == 2) {
            const auto second = rounded<kind>(state[1][plane], RandomLanes::moved(place, lanes));
            const hn::Repartition<std::uint16_t, BitsTag> halves;
            hn::StoreU(
                hn::ConcatOdd(halves, hn::BitCast(halves, second), hn::BitCast(halves, first)),
                halves, planes[plane] + at);
        } else {
            const auto half = hn::BitCast(SignedTag(), hn::ShiftRight<16>(first));
            hn::StoreU(hn::DemoteTo(HiTag(), half), HiTag(), planes[plane] + at);
        }
    }
    /// With the new half as the upper one; `place` of the elements' random numbers.
    template <MomentKind kind>
    HWY_INLINE BitsVector rounded(FloatVector value, BitsVector place) const {
        const BitsTag d;
        const auto u = hn::BitCast(d, value);
        BitsVector added;
        if constexpr (kind == MomentKind::mean)
            added = hn::Add(hn::And(hn::ShiftRight<16>(u), hn::Set(d, 1u)), hn::Set(d, 0x7FFFu));
        else
            added = hn::ShiftRight<16>(random.hash(place));
        return hn::Add(u, added);
    }
};

struct Bf16Loop {
    using Run = Bf16Pointers;
    static constexpr bool has_every_rule = false;

    template <GradientType gradient_type, class Coefficients, class Rule, class Master>
    static Progress update(const Rule& rule, const Master& master, const Run& run) {
        const Bf16State<Coefficients> state{{run.state[0], run.state[1]},
                                            RandomLanes(run.key, run.first_element)};
        return update_vectors<gradient_type>(rule, master, run.gradient, state, run.elements);
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

using detail::Bf16Pointers;
using detail::Progress;

template <class Coefficients>
constexpr detail::KernelTable<Progress(const Coefficients&, const Bf16Pointers&)> kernels =
    SPILLWAY_LOOP_TABLE(Bf16Loop);

/// The reference: widen, update, round. Returns 1 if the new master is to be counted.
template <class Coefficients>
std::size_t update_element(const Coefficients& coefficients, const Bf16Pointers& run,
                           std::size_t planes, std::size_t i) {
    constexpr auto kinds = kinds_of<Coefficients>;
    ElementwiseElement element;
    element.master = detail::master_of(run, i);
    for (std::size_t plane = 0; plane < planes; ++plane)
        element.state[plane] = from_bf16(run.state[plane][i]);
    element = updated(coefficients, element,
                      detail::gradient_element(run.gradient, run.gradient_type, i));
    for (std::size_t plane = 0; plane < planes; ++plane)
        run.state[plane][i] =
            kinds[plane] == MomentKind::mean
                ? to_bf16(element.state[plane])
                : to_bf16(element.state[plane], random_bits(run.key, run.first_element + i));
    return detail::store_master(run, element.master, i);
}

template <class Coefficients>
std::size_t update_by_rule(Isa isa, const Coefficients& coefficients, const RoundingStream& stream,
                           const Bf16Run& run) {
    const auto kernel = kernels<Coefficients>.at(isa);
    if (run.elements == 0)
        return 0;
    detail::require_lossy(coefficients, StateFormat::bf16, run);
    const std::size_t planes = state_planes(coefficients);
    for (std::size_t plane = 0; plane < planes; ++plane)
        detail::require_state_plane("update_run", "state", plane, run.state[plane]);
    std::size_t nonfinite = 0;
    for (std::size_t begin = 0; begin < run.elements;) {
        const auto count =
            detail::elements_of_one_key(run.first_element + begin, run.elements - begin);
        const auto key = rounding_key(stream, run.first_element + begin);
        Bf16Pointers part{detail::lossy_pointers(detail::moved(run, begin, count), key), {}};
        for (std::size_t plane = 0; plane < planes; ++plane)
            part.state[plane] = run.state[plane] + begin;
        Progress progress{.elements = 0, .nonfinite = 0};
        if (kernel != nullptr)
            progress = kernel(coefficients, part);
        for (std::size_t i = progress.elements; i < count; ++i)
            progress.nonfinite += update_element(coefficients, part, planes, i);
        nonfinite += progress.nonfinite;
        begin += count;
    }
    return nonfinite;
}

}  // namespace

std::size_t update_run(Isa isa, const ElementwiseCoefficients& coefficients,
                       const RoundingStream& stream, const Bf16Run& run) {
    return std::visit([&](const auto& rule) { return update_by_rule(isa, rule, stream, run); },
                      coefficients.rule);
}

std::size_t update_run(Isa isa, const LayerwiseStep& step, const RoundingStream& stream,
                       const Bf16Run& run) {
    return std::visit([&](const auto& rule) { return update_by_rule(isa, rule, stream, run); },
                      step.rule);
}

}  // namespace spillway::cpu_optim
#endif  // HWY_ONCE
