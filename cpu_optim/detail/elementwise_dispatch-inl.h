// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors

// Compiled once per target: the guard flips with HWY_TARGET_TOGGLE instead of closing for good.
#if defined(SPILLWAY_CPU_OPTIM_ELEMENTWISE_DISPATCH_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_CPU_OPTIM_ELEMENTWISE_DISPATCH_INL_H
#undef SPILLWAY_CPU_OPTIM_ELEMENTWISE_DISPATCH_INL_H
#else
#define SPILLWAY_CPU_OPTIM_ELEMENTWISE_DISPATCH_INL_H
#endif

#include "cpu_optim/detail/elementwise_rules-inl.h"
#include "cpu_optim/detail/elementwise_run.h"
#include "cpu_optim/detail/layerwise_rules-inl.h"
#include "cpu_optim/detail/master-inl.h"
#include "cpu_optim/elementwise_coefficients.h"
#include "cpu_optim/layerwise_coefficients.h"

// From the coefficients of a rule to the loop over a run for its switches, master layout and
// gradient type. `Loop` says what a run is and how state is kept:
//     using Run;                             has master, weight, residue, gradient_type
//     static constexpr bool has_every_rule;  amsgrad and centred are compiled, too
//     template <GradientType, class Coefficients> static Progress
//         update(const Rule&, const Master&, const Run&);

#if SPILLWAY_VECTOR_TARGET
HWY_BEFORE_NAMESPACE();
namespace spillway::cpu_optim {
namespace HWY_NAMESPACE {
namespace {

template <class Loop, class Coefficients, class Rule, class Master>
detail::Progress update_with(const Rule& rule, const Master& master,
                             const typename Loop::Run& run) {
    switch (run.gradient_type) {
        case GradientType::fp32:
            return Loop::template update<GradientType::fp32, Coefficients>(rule, master, run);
        case GradientType::bf16:
            return Loop::template update<GradientType::bf16, Coefficients>(rule, master, run);
        case GradientType::fp16:
            return Loop::template update<GradientType::fp16, Coefficients>(rule, master, run);
    }
    return {0, 0};
}

template <class Loop, class Coefficients, class Rule>
detail::Progress update_by(const Rule& rule, const typename Loop::Run& run) {
    if (run.master != nullptr)
        return update_with<Loop, Coefficients>(rule, WholeMaster<>{run.master}, run);
    return update_with<Loop, Coefficients>(rule, HalvedMaster<>{run.weight, run.residue}, run);
}

template <class Loop, Term decoupled_decay>
detail::Progress update_adam_with(const AdamCoefficients& c, const typename Loop::Run& run) {
    using C = AdamCoefficients;
    if (c.nesterov == Term::on)
        return update_by<Loop, C>(AdamRule<decoupled_decay, Term::off, Term::on>(c), run);
    if constexpr (Loop::has_every_rule) {
        if (c.amsgrad == Term::on)
            return update_by<Loop, C>(AdamRule<decoupled_decay, Term::on, Term::off>(c), run);
    }
    return update_by<Loop, C>(AdamRule<decoupled_decay, Term::off, Term::off>(c), run);
}

template <class Loop>
detail::Progress update_rule(const AdamCoefficients& c, const typename Loop::Run& run) {
    return c.decoupled_decay == Term::on ? update_adam_with<Loop, Term::on>(c, run)
                                         : update_adam_with<Loop, Term::off>(c, run);
}

template <class Loop>
detail::Progress update_rule(const SgdCoefficients& c, const typename Loop::Run& run) {
    using C = SgdCoefficients;
    return c.buffer != MomentumBuffer::none ? update_by<Loop, C>(SgdRule<Term::on>(c), run)
                                            : update_by<Loop, C>(SgdRule<Term::off>(c), run);
}

template <class Loop>
detail::Progress update_rule(const AdagradCoefficients& c, const typename Loop::Run& run) {
    return update_by<Loop, AdagradCoefficients>(AdagradRule(c), run);
}

template <class Loop>
detail::Progress update_rule(const LionCoefficients& c, const typename Loop::Run& run) {
    return update_by<Loop, LionCoefficients>(LionRule(c), run);
}

template <class Loop>
detail::Progress update_rule(const RmspropCoefficients& c, const typename Loop::Run& run) {
    using C = RmspropCoefficients;
    const bool has_momentum = c.has_momentum == Term::on;
    if constexpr (Loop::has_every_rule) {
        if (c.centred == Term::on)
            return has_momentum ? update_by<Loop, C>(RmspropRule<Term::on, Term::on>(c), run)
                                : update_by<Loop, C>(RmspropRule<Term::off, Term::on>(c), run);
    }
    return has_momentum ? update_by<Loop, C>(RmspropRule<Term::on, Term::off>(c), run)
                        : update_by<Loop, C>(RmspropRule<Term::off, Term::off>(c), run);
}

template <class Loop>
detail::Progress update_rule(const LambStep& c, const typename Loop::Run& run) {
    return update_by<Loop, LambStep>(SteppedRule<LambRule>(c), run);
}

template <class Loop>
detail::Progress update_rule(const LarsStep& c, const typename Loop::Run& run) {
    return update_by<Loop, LarsStep>(SteppedRule<LarsRule>(c), run);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu_optim
HWY_AFTER_NAMESPACE();
#endif  // SPILLWAY_VECTOR_TARGET

#endif  // per-target guard
