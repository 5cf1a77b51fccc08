// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/layerwise.h"

#include <array>

#include "cpu_optim/detail/gradient_element.h"
#include "cpu_optim/detail/kernel_table.h"
#include "cpu_optim/detail/lane_sum.h"
#include "cpu_optim/detail/require_planes.h"
#include "cpu_optim/detail/run_elements.h"
#include "cpu_optim/layerwise_reference.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_optim/layerwise.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu_optim/detail/gradient_load-inl.h"
#include "cpu_optim/detail/layerwise_rules-inl.h"
#include "cpu_optim/detail/square_sum-inl.h"

#if SPILLWAY_VECTOR_TARGET
HWY_BEFORE_NAMESPACE();
namespace spillway::cpu_optim {
namespace HWY_NAMESPACE {
namespace {

using detail::Progress;
using detail::RunPointers;

constexpr std::size_t row_elements = detail::sum_lanes;

/// What becomes of the state that pass 1 makes.
enum class NewState { stored, dropped };

/// Whole rows of sixteen elements, so that sums of every width have one shape.
template <GradientType gradient_type, NewState new_state, class Rule, class Master>
std::size_t prepare_rows(const Rule& rule, const Master& master, const RunPointers& run,
                         double* HWY_RESTRICT weight_lanes, double* HWY_RESTRICT direction_lanes) {
    const FloatTag d;
    const std::size_t lanes = hn::Lanes(d);
    const std::size_t elements = run.elements;
    const void* const gradient = run.gradient;
    float* const planes[most_state_planes] = {run.state[0], run.state[1], run.state[2]};
    SquareSum weight_squares, direction_squares;
    alignas(64) float weights[row_elements];
    alignas(64) float directions[row_elements];
    std::size_t first = 0;
    for (; first + row_elements <= elements; first += row_elements) {
        for (std::size_t offset = 0; offset < row_elements; offset += lanes) {
            const std::size_t i = first + offset;
            const auto w = master.load(i);
            FloatVector state[most_state_planes];
#pragma GCC unroll 3
            for (std::size_t plane = 0; plane < Rule::prepared_planes; ++plane)
                state[plane] = hn::LoadU(d, planes[plane] + i);
            const auto direction =
                rule.prepare(w, state, load_gradient<gradient_type>(d, gradient, i));
            if constexpr (new_state == NewState::stored) {
#pragma GCC unroll 3
                for (std::size_t plane = 0; plane < Rule::prepared_planes; ++plane)
                    hn::StoreU(state[plane], d, planes[plane] + i);
            }
            hn::StoreU(w, d, weights + offset);
            hn::StoreU(direction, d, directions + offset);
        }
        weight_squares.add_row(weights);
        direction_squares.add_row(directions);
    }
    weight_squares.store(weight_lanes);
    direction_squares.store(direction_lanes);
    return first;
}

template <GradientType gradient_type, class Rule, class Master>
Progress apply_vectors(const Rule& rule, const Master& master, float step, const RunPointers& run) {
    const FloatTag d;
    const std::size_t lanes = hn::Lanes(d);
    const std::size_t elements = run.elements;
    const void* const gradient = run.gradient;
    float* const planes[most_state_planes] = {run.state[0], run.state[1], run.state[2]};
    const auto steps = hn::Set(d, step);
    const auto largest = hn::BitCast(d, hn::Set(BitsTag(), Master::largest_bits));
    std::size_t nonfinite = 0;
    std::size_t i = 0;
    for (; i + lanes <= elements; i += lanes) {
        auto w = master.load(i);
        FloatVector state[most_state_planes];
#pragma GCC unroll 3
        for (std::size_t plane = 0; plane < Rule::planes; ++plane)
            state[plane] = hn::LoadU(d, planes[plane] + i);
        auto g = hn::Zero(d);
        if constexpr (Rule::applies_gradient)
            g = load_gradient<gradient_type>(d, gradient, i);
        rule.apply(w, state, g, steps);
#pragma GCC unroll 3
        for (std::size_t plane = 0; plane < Rule::applied_planes; ++plane)
            hn::StoreU(state[plane], d, planes[plane] + i);
        nonfinite += lanes - hn::CountTrue(d, hn::Le(hn::Abs(w), largest));
        master.store(w, i);
    }
    return {i, nonfinite};
}

/// body(rule, master) with the run's kind of master.
template <class Rule, class Body>
auto with_master(const Rule& rule, const RunPointers& run, const Body& body) {
    return run.master != nullptr ? body(rule, WholeMaster<>{run.master})
                                 : body(rule, HalvedMaster<>{run.weight, run.residue});
}

template <NewState new_state, class Rule>
std::size_t prepare_by(const Rule& rule, const RunPointers& run, double* weight_lanes,
                       double* direction_lanes) {
    return with_master(rule, run, [&](const Rule& r, const auto& master) -> std::size_t {
        switch (run.gradient_type) {
            case GradientType::fp32:
                return prepare_rows<GradientType::fp32, new_state>(r, master, run, weight_lanes,
                                                                   direction_lanes);
            case GradientType::bf16:
                return prepare_rows<GradientType::bf16, new_state>(r, master, run, weight_lanes,
                                                                   direction_lanes);
            case GradientType::fp16:
                return prepare_rows<GradientType::fp16, new_state>(r, master, run, weight_lanes,
                                                                   direction_lanes);
        }
        return 0;
    });
}

template <class Rule>
Progress apply_by(const Rule& rule, float step, const RunPointers& run) {
    return with_master(rule, run, [&](const Rule& r, const auto& master) -> Progress {
        if constexpr (Rule::applies_gradient) {
            if (run.gradient_type == GradientType::bf16)
                return apply_vectors<GradientType::bf16>(r, master, step, run);
            if (run.gradient_type == GradientType::fp16)
                return apply_vectors<GradientType::fp16>(r, master, step, run);
        }
        return apply_vectors<GradientType::fp32>(r, master, step, run);
    });
}

std::size_t prepare_lamb(const LambCoefficients& c, const RunPointers& run, double* weight_lanes,
                         double* direction_lanes) {
    return prepare_by<NewState::stored>(LambRule(c), run, weight_lanes, direction_lanes);
}
std::size_t measure_lamb(const LambCoefficients& c, const RunPointers& run, double* weight_lanes,
                         double* direction_lanes) {
    return prepare_by<NewState::dropped>(LambRule(c), run, weight_lanes, direction_lanes);
}
std::size_t prepare_lars(const LarsCoefficients& c, const RunPointers& run, double* weight_lanes,
                         double* direction_lanes) {
    return prepare_by<NewState::stored>(LarsRule(c), run, weight_lanes, direction_lanes);
}
Progress apply_lamb(const LambCoefficients& c, float step, const RunPointers& run) {
    return apply_by(LambRule(c), step, run);
}
Progress apply_lars(const LarsCoefficients& c, float step, const RunPointers& run) {
    return apply_by(LarsRule(c), step, run);
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
struct Kernels {
    using Sums = std::size_t(const Coefficients&, const RunPointers&, double*, double*);
    detail::KernelTable<Sums> prepare, measure;
    detail::KernelTable<Progress(const Coefficients&, float, const RunPointers&)> apply;
    std::size_t planes;
    bool applies_gradient;
};

constexpr Kernels<LambCoefficients> lamb_kernels{SPILLWAY_KERNEL_TABLE(prepare_lamb),
                                                 SPILLWAY_KERNEL_TABLE(measure_lamb),
                                                 SPILLWAY_KERNEL_TABLE(apply_lamb), 2, false};
// Its pass 1 stores nothing anyway.
constexpr Kernels<LarsCoefficients> lars_kernels{SPILLWAY_KERNEL_TABLE(prepare_lars),
                                                 SPILLWAY_KERNEL_TABLE(prepare_lars),
                                                 SPILLWAY_KERNEL_TABLE(apply_lars), 1, true};

enum class FirstPass { prepares, measures };

const auto& kernels_of(const LambCoefficients&) {
    return lamb_kernels;
}
const auto& kernels_of(const LarsCoefficients&) {
    return lars_kernels;
}

template <class Coefficients>
LayerSums first_pass_by_rule(Isa isa, const Coefficients& coefficients, FirstPass pass,
                             const ElementwiseRun& run) {
    const auto& kernels = kernels_of(coefficients);
    const bool prepares = pass == FirstPass::prepares;
    const char* const name = prepares ? "prepare_run" : "measure_run";
    const auto kernel = (prepares ? kernels.prepare : kernels.measure).at(isa);
    if (run.elements == 0)
        return {};
    detail::require_masters(name, run.master, run.weight, run.residue);
    detail::require_state(name, run, kernels.planes);
    detail::require_gradient(name, run);
    std::array<double, detail::sum_lanes> weights{}, directions{};
    std::size_t i = 0;
    if (kernel != nullptr)
        i = kernel(coefficients, detail::pointers_of(run), weights.data(), directions.data());
    for (; i < run.elements; ++i) {
        const ElementwiseElement old = detail::element_of(run, kernels.planes, i);
        const float gradient = detail::gradient_element(run.gradient, run.gradient_type, i);
        const auto [element, direction] = prepared(coefficients, old, gradient);
        if (prepares)
            detail::store_state(run, kernels.planes, element, i);
        const double w = old.master;
        const double u = direction;
        weights[i % detail::sum_lanes] += w * w;
        directions[i % detail::sum_lanes] += u * u;
    }
    return {detail::add_up_lanes(weights), detail::add_up_lanes(directions)};
}

template <class Coefficients>
std::size_t apply_by_rule(Isa isa, const Coefficients& coefficients, float step,
                          const ElementwiseRun& run) {
    const auto& kernels = kernels_of(coefficients);
    const auto kernel = kernels.apply.at(isa);
    if (run.elements == 0)
        return 0;
    detail::require_masters("apply_run", run.master, run.weight, run.residue);
    detail::require_state("apply_run", run, kernels.planes);
    if (kernels.applies_gradient)
        detail::require_gradient("apply_run", run);
    Progress progress{.elements = 0, .nonfinite = 0};
    if (kernel != nullptr)
        progress = kernel(coefficients, step, detail::pointers_of(run));
    for (std::size_t i = progress.elements; i < run.elements; ++i) {
        const float gradient = kernels.applies_gradient
                                   ? detail::gradient_element(run.gradient, run.gradient_type, i)
                                   : 0.0F;
        const ElementwiseElement element =
            applied(coefficients, step, detail::element_of(run, kernels.planes, i), gradient);
        detail::store_state(run, kernels.planes, element, i);
        progress.nonfinite += detail::store_master(run, element.master, i);
    }
    return progress.nonfinite;
}

}  // namespace

LayerSums prepare_run(Isa isa, const LayerwiseCoefficients& coefficients,
                      const ElementwiseRun& run) {
    return std::visit(
        [&](const auto& rule) { return first_pass_by_rule(isa, rule, FirstPass::prepares, run); },
        coefficients.rule);
}

LayerSums measure_run(Isa isa, const LayerwiseCoefficients& coefficients,
                      const ElementwiseRun& run) {
    return std::visit(
        [&](const auto& rule) { return first_pass_by_rule(isa, rule, FirstPass::measures, run); },
        coefficients.rule);
}

std::size_t apply_run(Isa isa, const LayerwiseCoefficients& coefficients, float step,
                      const ElementwiseRun& run) {
    return std::visit([&](const auto& rule) { return apply_by_rule(isa, rule, step, run); },
                      coefficients.rule);
}

}  // namespace spillway::cpu_optim
#endif  // HWY_ONCE
