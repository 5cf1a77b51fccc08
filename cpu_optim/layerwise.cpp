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

using detail::RunPointers;

constexpr std::size_t row_elements = detail::sum_lanes;

HWY_INLINE LambRule rule_of(const LambCoefficients& c) {
    return LambRule(c);
}
HWY_INLINE LarsRule rule_of(const LarsCoefficients& c) {
    return LarsRule(c);
}

/// Whole rows of sixteen elements, so that sums of every width have one shape.
template <GradientType gradient_type, class Rule, class Master>
std::size_t measure_rows(const Rule& rule, const Master& master, const RunPointers& run,
                         double* HWY_RESTRICT weight_lanes, double* HWY_RESTRICT direction_lanes) {
    const FloatTag d;
    const std::size_t lanes = hn::Lanes(d);
    const std::size_t elements = run.elements;
    const void* const gradient = run.gradient;
    const float* const planes[most_state_planes] = {run.state[0], run.state[1], run.state[2]};
    SquareSum weight_squares, direction_squares;
    alignas(64) float weights[row_elements];
    alignas(64) float directions[row_elements];
    std::size_t first = 0;
    for (; first + row_elements <= elements; first += row_elements) {
        for (std::size_t offset = 0; offset < row_elements; offset += lanes) {
            const std::size_t i = first + offset;
            const auto w = master.load(i);
            FloatVector state[most_state_planes];
#pragma GCC unroll 2
            for (std::size_t plane = 0; plane < Rule::measured_planes; ++plane)
                state[plane] = hn::LoadU(d, planes[plane] + i);
            const auto direction =
                rule.prepare(w, state, load_gradient<gradient_type>(d, gradient, i));
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

template <class Rule, class Master>
std::size_t measure_with(const Rule& rule, const Master& master, const RunPointers& run,
                         double* weight_lanes, double* direction_lanes) {
    switch (run.gradient_type) {
        case GradientType::fp32:
            return measure_rows<GradientType::fp32>(rule, master, run, weight_lanes,
                                                    direction_lanes);
        case GradientType::bf16:
            return measure_rows<GradientType::bf16>(rule, master, run, weight_lanes,
                                                    direction_lanes);
        case GradientType::fp16:
            return measure_rows<GradientType::fp16>(rule, master, run, weight_lanes,
                                                    direction_lanes);
    }
    return 0;
}

template <class Coefficients>
std::size_t measure(const Coefficients& c, const RunPointers& run, double* weight_lanes,
                    double* direction_lanes) {
    const auto rule = rule_of(c);
    if (run.master != nullptr)
        return measure_with(rule, WholeMaster<const float>{run.master}, run, weight_lanes,
                            direction_lanes);
    return measure_with(
        rule, HalvedMaster<const std::uint16_t, const std::int16_t>{run.weight, run.residue}, run,
        weight_lanes, direction_lanes);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu_optim
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace spillway::cpu_optim {
namespace {

using detail::RunPointers;

template <class Coefficients>
constexpr detail::KernelTable<std::size_t(const Coefficients&, const RunPointers&, double*,
                                          double*)>
    kernels = SPILLWAY_KERNEL_TABLE(measure);

/// Planes that the direction is found from.
constexpr std::size_t measured_planes(const LambCoefficients&) {
    return 2;
}
constexpr std::size_t measured_planes(const LarsCoefficients&) {
    return 0;
}

template <class Coefficients>
LayerSums measure_by_rule(Isa isa, const Coefficients& coefficients, const ElementwiseRun& run) {
    const auto kernel = kernels<Coefficients>.at(isa);
    if (run.elements == 0)
        return {};
    const auto planes = measured_planes(coefficients);
    detail::require_masters("measure_run", run.master, run.weight, run.residue);
    detail::require_state("measure_run", run, planes);
    detail::require_gradient("measure_run", run);
    std::array<double, detail::sum_lanes> weights{}, directions{};
    std::size_t i = 0;
    if (kernel != nullptr)
        i = kernel(coefficients, detail::pointers_of(run), weights.data(), directions.data());
    for (; i < run.elements; ++i) {
        const ElementwiseElement old = detail::element_of(run, planes, i);
        const float gradient = detail::gradient_element(run.gradient, run.gradient_type, i);
        const double w = old.master;
        const double u = prepared(coefficients, old, gradient).direction;
        weights[i % detail::sum_lanes] += w * w;
        directions[i % detail::sum_lanes] += u * u;
    }
    return {detail::add_up_lanes(weights), detail::add_up_lanes(directions)};
}

}  // namespace

LayerSums measure_run(Isa isa, const LayerwiseCoefficients& coefficients,
                      const ElementwiseRun& run) {
    return std::visit([&](const auto& rule) { return measure_by_rule(isa, rule, run); },
                      coefficients.rule);
}

}  // namespace spillway::cpu_optim
#endif  // HWY_ONCE
