// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/elementwise.h"

#include <cmath>
#include <stdexcept>

#include <fmt/format.h>

#include "cpu_optim/detail/elementwise_run.h"
#include "cpu_optim/detail/gradient_element.h"
#include "cpu_optim/detail/kernel_table.h"
#include "cpu_optim/elementwise_reference.h"
#include "cpu_optim/split_master.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_optim/elementwise.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu_optim/detail/elementwise_rules-inl.h"
#include "cpu_optim/detail/gradient_load-inl.h"
#include "cpu_optim/detail/split_master-inl.h"

#if SPILLWAY_VECTOR_TARGET
HWY_BEFORE_NAMESPACE();
namespace spillway::cpu_optim {
namespace HWY_NAMESPACE {
namespace {

using detail::Progress;
using detail::RunPointers;

HWY_INLINE FloatVector with_one_nan(FloatVector value) {
    const auto quiet_nan = hn::BitCast(FloatTag(), hn::Set(BitsTag(), 0x7FC00000u));
    return hn::IfThenElse(hn::IsNaN(value), quiet_nan, value);
}

/// The weight is fp32 and its own master.
struct WholeMaster {
    float* HWY_RESTRICT values;

    HWY_INLINE FloatVector load(std::size_t i) const { return hn::LoadU(FloatTag(), values + i); }
    HWY_INLINE std::size_t store(FloatVector master, std::size_t i) const {
        hn::StoreU(master, FloatTag(), values + i);
        const auto magnitude = hn::BitCast(
            SignedTag(), hn::And(hn::BitCast(BitsTag(), master), hn::Set(BitsTag(), 0x7FFFFFFFu)));
        return hn::CountTrue(SignedTag(), hn::Gt(magnitude, hn::Set(SignedTag(), 0x7F7FFFFF)));
    }
};

struct HalvedMaster {
    std::uint16_t* HWY_RESTRICT weight;
    std::int16_t* HWY_RESTRICT residue;

    HWY_INLINE FloatVector load(std::size_t i) const {
        return load_master(weight + i, residue + i);
    }
    HWY_INLINE std::size_t store(FloatVector master, std::size_t i) const {
        return store_master(master, weight + i, residue + i);
    }
};

/// The one loop of every rule, master layout and gradient type, over the whole vectors of a run.
template <GradientType gradient_type, class Rule, class Master>
Progress update_vectors(const Rule& rule, const Master& master, const RunPointers& run) {
    const FloatTag d;
    const std::size_t lanes = hn::Lanes(d);
    // Copies, since the compiler must take it that a store through the pointers changes `run`.
    const std::size_t elements = run.elements;
    const void* const gradient = run.gradient;
    float* const planes[most_state_planes] = {run.state[0], run.state[1], run.state[2]};
    std::size_t nonfinite = 0;
    std::size_t i = 0;
    for (; i + lanes <= elements; i += lanes) {
        auto w = master.load(i);
        FloatVector state[most_state_planes];
#pragma GCC unroll 3
        for (std::size_t plane = 0; plane < Rule::planes; ++plane)
            state[plane] = hn::LoadU(d, planes[plane] + i);
        rule.update(w, state, load_gradient<gradient_type>(d, gradient, i));
#pragma GCC unroll 3
        for (std::size_t plane = 0; plane < Rule::planes; ++plane)
            hn::StoreU(with_one_nan(state[plane]), d, planes[plane] + i);
        nonfinite += master.store(with_one_nan(w), i);
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
        return update_with(rule, WholeMaster{run.master}, run);
    return update_with(rule, HalvedMaster{run.weight, run.residue}, run);
}

template <Term decoupled_decay>
Progress update_adam_with(const AdamCoefficients& c, const RunPointers& run) {
    return c.amsgrad == Term::on ? update_by(AdamRule<decoupled_decay, Term::on>(c), run)
                                 : update_by(AdamRule<decoupled_decay, Term::off>(c), run);
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

void require_planes(const ElementwiseRun& run, std::size_t planes) {
    const bool has_halves = run.weight != nullptr && run.residue != nullptr;
    const bool has_half = run.weight != nullptr || run.residue != nullptr;
    if (run.master != nullptr ? has_half : !has_halves)
        throw std::invalid_argument(fmt::format(
            "update_run: master is {}, weight is {}, residue is {}: set either master, or weight "
            "and residue",
            run.master != nullptr ? "set" : "null", run.weight != nullptr ? "set" : "null",
            run.residue != nullptr ? "set" : "null"));
    for (std::size_t plane = 0; plane < planes; ++plane)
        if (run.state[plane] == nullptr)
            throw std::invalid_argument(fmt::format(
                "update_run: state[{}] is null and this rule keeps {} planes of state: set them "
                "all",
                plane, planes));
    if (run.gradient == nullptr)
        throw std::invalid_argument("update_run: gradient is null: set it");
}

/// Updates element `i` by the reference; returns 1 if the new master is to be counted.
template <class Coefficients>
std::size_t update_element(const Coefficients& coefficients, const RunPointers& run,
                           std::size_t planes, std::size_t i) {
    ElementwiseElement element;
    element.master = run.master != nullptr ? run.master[i] : join({run.weight[i], run.residue[i]});
    for (std::size_t plane = 0; plane < planes; ++plane)
        element.state[plane] = run.state[plane][i];
    const float gradient = detail::gradient_element(run.gradient, run.gradient_type, i);
    element = updated(coefficients, element, gradient);
    for (std::size_t plane = 0; plane < planes; ++plane)
        run.state[plane][i] = element.state[plane];
    if (run.master != nullptr) {
        run.master[i] = element.master;
        return std::isfinite(element.master) ? 0 : 1;
    }
    const SplitWeight halves = split(element.master);
    run.weight[i] = halves.hi;
    run.residue[i] = halves.lo;
    return has_finite_hi(element.master) ? 0 : 1;
}

template <class Coefficients>
std::size_t update_by_rule(Isa isa, const Coefficients& coefficients, const ElementwiseRun& run) {
    const auto kernel = kernels_of(coefficients).at(isa);
    if (run.elements == 0)
        return 0;
    const std::size_t planes = state_planes(coefficients);
    require_planes(run, planes);
    const RunPointers pointers{.elements = run.elements,
                               .master = run.master,
                               .weight = run.weight,
                               .residue = run.residue,
                               .state = {run.state[0], run.state[1], run.state[2]},
                               .gradient = run.gradient,
                               .gradient_type = run.gradient_type};
    Progress progress{.elements = 0, .nonfinite = 0};
    if (kernel != nullptr)
        progress = kernel(coefficients, pointers);
    for (std::size_t i = progress.elements; i < run.elements; ++i)
        progress.nonfinite += update_element(coefficients, pointers, planes, i);
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
