// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/elementwise.h"

#include "cpu_optim/detail/gradient_element.h"
#include "cpu_optim/detail/kernel_table.h"
#include "cpu_optim/detail/require_planes.h"
#include "cpu_optim/detail/run_elements.h"
#include "cpu_optim/layerwise.h"
#include "cpu_optim/layerwise_reference.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_optim/elementwise.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu_optim/detail/elementwise_dispatch-inl.h"
#include "cpu_optim/detail/update_adjacent-inl.h"

#if SPILLWAY_VECTOR_TARGET
HWY_BEFORE_NAMESPACE();
namespace spillway::cpu_optim {
namespace HWY_NAMESPACE {
namespace {

using detail::Progress;
using detail::RunPointers;

/// Planes of fp32. Copies, since the compiler must take it that a store through the pointers
/// changes the run.
struct FloatState {
    float* planes[most_state_planes];

    template <std::size_t plane_count, std::size_t count>
    HWY_INLINE void load(FloatVector (*state)[most_state_planes], std::size_t at) const {
        const std::size_t lanes = hn::Lanes(FloatTag());
#pragma GCC unroll 2
        for (std::size_t n = 0; n < count; ++n)
#pragma GCC unroll 3
            for (std::size_t plane = 0; plane < plane_count; ++plane)
                state[n][plane] = hn::LoadU(FloatTag(), planes[plane] + at + n * lanes);
    }
    template <std::size_t plane_count>
    HWY_INLINE void prefetch(std::size_t at, std::size_t elements) const {
#pragma GCC unroll 3
        for (std::size_t plane = 0; plane < plane_count; ++plane)
            HWY_NAMESPACE::prefetch(planes[plane], at * sizeof(float), elements * sizeof(float));
    }
    template <std::size_t plane_count, std::size_t count>
    HWY_INLINE void store(const FloatVector (*state)[most_state_planes], std::size_t at) const {
        const std::size_t lanes = hn::Lanes(FloatTag());
#pragma GCC unroll 2
        for (std::size_t n = 0; n < count; ++n)
#pragma GCC unroll 3
            for (std::size_t plane = 0; plane < plane_count; ++plane)
                hn::StoreU(state[n][plane], FloatTag(), planes[plane] + at + n * lanes);
    }
};

struct FloatLoop {
    using Run = RunPointers;
    static constexpr bool has_every_rule = true;

    template <GradientType gradient_type, class Coefficients, class Rule, class Master>
    static Progress update(const Rule& rule, const Master& master, const Run& run) {
        const FloatState state{{run.state[0], run.state[1], run.state[2]}};
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

using detail::Progress;
using detail::RunPointers;

template <class Coefficients>
constexpr detail::KernelTable<Progress(const Coefficients&, const RunPointers&)> kernels =
    SPILLWAY_LOOP_TABLE(FloatLoop);

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
    const auto kernel = kernels<Coefficients>.at(isa);
    if (run.elements == 0)
        return 0;
    const std::size_t planes = state_planes(coefficients);
    detail::require_masters("update_run", run.master, run.weight, run.residue);
    detail::require_state("update_run", run, planes);
    detail::require_gradient("update_run", run.gradient);
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

// With its tensor's step known, a layerwise rule is one of elements.
std::size_t update_run(Isa isa, const LayerwiseStep& step, const ElementwiseRun& run) {
    return std::visit([&](const auto& rule) { return update_by_rule(isa, rule, run); }, step.rule);
}

}  // namespace spillway::cpu_optim
#endif  // HWY_ONCE
