// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/elementwise.h"

#include "cpu_optim/detail/gradient_element.h"
#include "cpu_optim/detail/kernel_table.h"
#include "cpu_optim/detail/require_planes.h"
#include "cpu_optim/detail/run_elements.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_optim/elementwise.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu_optim/detail/elementwise_rules-inl.h"
#include "cpu_optim/detail/gradient_load-inl.h"
#include "cpu_optim/detail/master-inl.h"

#if SPILLWAY_VECTOR_TARGET
HWY_BEFORE_NAMESPACE();
namespace spillway::cpu_optim {
namespace HWY_NAMESPACE {
namespace {

using detail::Progress;
using detail::RunPointers;

/// What a kernel reads and writes. Copies, since the compiler must take it that a store through the
/// pointers changes the run.
struct RunPlanes {
    const void* HWY_RESTRICT gradient;
    float* state[most_state_planes];
};

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
/// of them, and only else the NaNs are made one and the masters counted.
template <std::size_t count, GradientType gradient_type, class Rule, class Master>
HWY_INLINE std::size_t update_adjacent(const Rule& rule, const Master& master,
                                       const RunPlanes& planes, std::size_t i) {
    const FloatTag d;
    const std::size_t lanes = hn::Lanes(d);
    const auto largest = hn::BitCast(d, hn::Set(BitsTag(), Master::largest_bits));
    FloatVector w[count], state[count][most_state_planes];
#pragma GCC unroll 2
    for (std::size_t n = 0; n < count; ++n) {
        const std::size_t at = i + n * lanes;
        w[n] = master.load(at);
#pragma GCC unroll 3
        for (std::size_t plane = 0; plane < Rule::planes; ++plane)
            state[n][plane] = hn::LoadU(d, planes.state[plane] + at);
        rule.update(w[n], state[n], load_gradient<gradient_type>(d, planes.gradient, at));
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
#pragma GCC unroll 2
    for (std::size_t n = 0; n < count; ++n) {
        const std::size_t at = i + n * lanes;
#pragma GCC unroll 3
        for (std::size_t plane = 0; plane < Rule::planes; ++plane)
            hn::StoreU(state[n][plane], d, planes.state[plane] + at);
        master.store(w[n], at);
    }
    return counted;
}

/// The one loop of every rule, master layout and gradient type, over the whole vectors of a run.
/// Two vectors at a time: the second has work while the first waits for its root and division.
template <GradientType gradient_type, class Rule, class Master>
Progress update_vectors(const Rule& rule, const Master& master, const RunPointers& run) {
    const std::size_t lanes = hn::Lanes(FloatTag());
    const std::size_t elements = run.elements;
    const RunPlanes planes{run.gradient, {run.state[0], run.state[1], run.state[2]}};
    std::size_t nonfinite = 0;
    std::size_t i = 0;
    for (; i + 2 * lanes <= elements; i += 2 * lanes)
        nonfinite += update_adjacent<2, gradient_type>(rule, master, planes, i);
    if (i + lanes <= elements) {
        nonfinite += update_adjacent<1, gradient_type>(rule, master, planes, i);
        i += lanes;
    }
    return {i, nonfinite};
}

template <class Rule, class Master>
Progress update_with(const Rule& rule, const Master& master, const RunPointers& run) {
    switch (run.gradient_type) {
        case GradientType::fp32:
            return update_vectors<GradientType::fp32>(rule, master, run);
        case GradientType::bf16:
            return update_vectors<GradientType::bf16>(rule, master, run);
        case GradientType::fp16:
            return update_vectors<GradientType::fp16>(rule, master, run);
    }
    return {0, 0};
}

template <class Rule>
Progress update_by(const Rule& rule, const RunPointers& run) {
    if (run.master != nullptr)
        return update_with(rule, WholeMaster<>{run.master}, run);
    return update_with(rule, HalvedMaster<>{run.weight, run.residue}, run);
}

template <Term decoupled_decay>
Progress update_adam_with(const AdamCoefficients& c, const RunPointers& run) {
    if (c.nesterov == Term::on)
        return update_by(AdamRule<decoupled_decay, Term::off, Term::on>(c), run);
    return c.amsgrad == Term::on
               ? update_by(AdamRule<decoupled_decay, Term::on, Term::off>(c), run)
               : update_by(AdamRule<decoupled_decay, Term::off, Term::off>(c), run);
}

Progress update_adam(const AdamCoefficients& c, const RunPointers& run) {
    return c.decoupled_decay == Term::on ? update_adam_with<Term::on>(c, run)
                                         : update_adam_with<Term::off>(c, run);
}

Progress update_sgd(const SgdCoefficients& c, const RunPointers& run) {
    return c.buffer != MomentumBuffer::none ? update_by(SgdRule<Term::on>(c), run)
                                            : update_by(SgdRule<Term::off>(c), run);
}

Progress update_adagrad(const AdagradCoefficients& c, const RunPointers& run) {
    return update_by(AdagradRule(c), run);
}

Progress update_lion(const LionCoefficients& c, const RunPointers& run) {
    return update_by(LionRule(c), run);
}

Progress update_rmsprop(const RmspropCoefficients& c, const RunPointers& run) {
    if (c.has_momentum == Term::on)
        return c.centred == Term::on ? update_by(RmspropRule<Term::on, Term::on>(c), run)
                                     : update_by(RmspropRule<Term::on, Term::off>(c), run);
    return c.centred == Term::on ? update_by(RmspropRule<Term::off, Term::on>(c), run)
                                 : update_by(RmspropRule<Term::off, Term::off>(c), run);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu_optim
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace spillway::cpu_optim {
namespace {

using detail::Progress;
using detail::RunPointers;

template <class Coefficients>
using RuleKernels = detail::KernelTable<Progress(const Coefficients&, const RunPointers&)>;

constexpr RuleKernels<AdamCoefficients> adam_kernels = SPILLWAY_KERNEL_TABLE(update_adam);
constexpr RuleKernels<SgdCoefficients> sgd_kernels = SPILLWAY_KERNEL_TABLE(update_sgd);
constexpr RuleKernels<AdagradCoefficients> adagrad_kernels = SPILLWAY_KERNEL_TABLE(update_adagrad);
constexpr RuleKernels<LionCoefficients> lion_kernels = SPILLWAY_KERNEL_TABLE(update_lion);
constexpr RuleKernels<RmspropCoefficients> rmsprop_kernels = SPILLWAY_KERNEL_TABLE(update_rmsprop);

const auto& kernels_of(const AdamCoefficients&) {
    return adam_kernels;
}
const auto& kernels_of(const SgdCoefficients&) {
    return sgd_kernels;
}
const auto& kernels_of(const AdagradCoefficients&) {
    return adagrad_kernels;
}
const auto& kernels_of(const LionCoefficients&) {
    return lion_kernels;
}
const auto& kernels_of(const RmspropCoefficients&) {
    return rmsprop_kernels;
}

/// Updates element `i` by the reference; returns 1 if the new master is to be counted.
template <class Coefficients>
std::size_t update_element(const Coefficients& coefficients, const ElementwiseRun& run,
                           std::size_t planes, std::size_t i) {
    const float gradient = detail::gradient_element(run.gradient, run.gradient_type, i);
    const ElementwiseElement element =
        updated(coefficients, detail::element_of(run, planes, i), gradient);
    detail::store_state(run, planes, element, i);
    return detail::store_master(run, element.master, i);
}

template <class Coefficients>
std::size_t update_by_rule(Isa isa, const Coefficients& coefficients, const ElementwiseRun& run) {
    const auto kernel = kernels_of(coefficients).at(isa);
    if (run.elements == 0)
        return 0;
    const std::size_t planes = state_planes(coefficients);
    detail::require_masters("update_run", run.master, run.weight, run.residue);
    detail::require_state("update_run", run, planes);
    detail::require_gradient("update_run", run);
    Progress progress{.elements = 0, .nonfinite = 0};
    if (kernel != nullptr)
        progress = kernel(coefficients, detail::pointers_of(run));
    for (std::size_t i = progress.elements; i < run.elements; ++i)
        progress.nonfinite += update_element(coefficients, run, planes, i);
    return progress.nonfinite;
}

}  // namespace

std::size_t update_run(Isa isa, const ElementwiseCoefficients& coefficients,
                       const ElementwiseRun& run) {
    return std::visit([&](const auto& rule) { return update_by_rule(isa, rule, run); },
                      coefficients.rule);
}

}  // namespace spillway::cpu_optim
#endif  // HWY_ONCE
