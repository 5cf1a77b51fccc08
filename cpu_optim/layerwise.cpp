// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/layerwise.h"

#include <array>

#include "cpu_optim/detail/gradient_element.h"
#include "cpu_optim/detail/kernel_table.h"
#include "cpu_optim/detail/lane_sum.h"
#include "cpu_optim/detail/lossy_run.h"
#include "cpu_optim/detail/require_planes.h"
#include "cpu_optim/detail/run_elements.h"
#include "cpu_optim/float_formats.h"
#include "cpu_optim/layerwise_reference.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_optim/layerwise.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu_optim/detail/bf16_load-inl.h"
#include "cpu_optim/detail/gradient_load-inl.h"
#include "cpu_optim/detail/layerwise_rules-inl.h"
#include "cpu_optim/detail/moment_codec-inl.h"
#include "cpu_optim/detail/square_sum-inl.h"

#if SPILLWAY_VECTOR_TARGET
HWY_BEFORE_NAMESPACE();
namespace spillway::cpu_optim {
namespace HWY_NAMESPACE {
namespace {

using detail::Bf16Pointers;
using detail::Int8Pointers;
using detail::RunPointers;

constexpr std::size_t row_elements = detail::sum_lanes;

HWY_INLINE LambRule rule_of(const LambCoefficients& c) {
    return LambRule(c);
}
HWY_INLINE LarsRule rule_of(const LarsCoefficients& c) {
    return LarsRule(c);
}

// Where the state is read from: enter(first) comes before the load() of each whole row.

struct FloatSource {
    const float* planes[2];

    HWY_INLINE void enter(std::size_t /*first*/) const {}
    HWY_INLINE FloatVector load(std::size_t plane, std::size_t i) const {
        return hn::LoadU(FloatTag(), planes[plane] + i);
    }
};

struct Bf16Source {
    const std::uint16_t* planes[most_lossy_planes];

    HWY_INLINE void enter(std::size_t /*first*/) const {}
    HWY_INLINE FloatVector load(std::size_t plane, std::size_t i) const {
        return load_halves(planes[plane] + i);
    }
};

/// Decodes block by block: the elements of a vector lie apart in the codes.
template <class Rule>
class Int8Source {
  public:
    HWY_INLINE explicit Int8Source(const Int8Pointers& run)
        : codes_{run.codes[0], run.codes[1]}, scales_{run.scales[0], run.scales[1]} {}

    HWY_INLINE void enter(std::size_t first) {
        if (first % block_elements != 0)
            return;
        if constexpr (Rule::measured_planes > 0)
            decode_plane<0>(first);
        if constexpr (Rule::measured_planes > 1)
            decode_plane<1>(first);
    }
    HWY_INLINE FloatVector load(std::size_t plane, std::size_t i) const {
        return hn::LoadU(FloatTag(), values_[plane] + i % block_elements);
    }

  private:
    static constexpr auto kinds = kinds_of<typename Rule::Step>;
    static constexpr std::size_t block_words = block_elements / parts;

    template <std::size_t plane>
    HWY_INLINE void decode_plane(std::size_t first) {
        const Bias bias(scales_[plane][first / block_elements]);
        for (std::size_t word = 0; word < block_words; word += hn::Lanes(BitsTag())) {
            const auto words =
                hn::BitCast(BitsTag(), hn::LoadU(BytesTag(), codes_[plane] + first + parts * word));
            float* const to = values_[plane] + word;
            hn::StoreU(decode_part<kinds[plane], 0>(words, bias), FloatTag(), to);
            hn::StoreU(decode_part<kinds[plane], 1>(words, bias), FloatTag(), to + block_words);
            hn::StoreU(decode_part<kinds[plane], 2>(words, bias), FloatTag(), to + 2 * block_words);
            hn::StoreU(decode_part<kinds[plane], 3>(words, bias), FloatTag(), to + 3 * block_words);
        }
    }

    const std::uint8_t* codes_[most_lossy_planes];
    const std::uint8_t* scales_[most_lossy_planes];
    alignas(64) float values_[most_lossy_planes][block_elements];
};

template <class Rule>
HWY_INLINE FloatSource source_of(const RunPointers& run) {
    return {{run.state[0], run.state[1]}};
}
template <class Rule>
HWY_INLINE Bf16Source source_of(const Bf16Pointers& run) {
    return {{run.state[0], run.state[1]}};
}
template <class Rule>
HWY_INLINE Int8Source<Rule> source_of(const Int8Pointers& run) {
    return Int8Source<Rule>(run);
}

/// Whole rows of sixteen elements, so that sums of every width have one shape.
template <GradientType gradient_type, class Rule, class Master, class Run>
std::size_t measure_rows(const Rule& rule, const Master& master, const Run& run,
                         double* HWY_RESTRICT weight_lanes, double* HWY_RESTRICT direction_lanes) {
    const FloatTag d;
    const std::size_t lanes = hn::Lanes(d);
    const std::size_t elements = run.elements;
    const void* const gradient = run.gradient;
    auto source = source_of<Rule>(run);
    SquareSum weight_squares, direction_squares;
    alignas(64) float weights[row_elements];
    alignas(64) float directions[row_elements];
    std::size_t first = 0;
    for (; first + row_elements <= elements; first += row_elements) {
        source.enter(first);
        for (std::size_t offset = 0; offset < row_elements; offset += lanes) {
            const std::size_t i = first + offset;
            const auto w = master.load(i);
            FloatVector state[most_state_planes];
#pragma GCC unroll 2
            for (std::size_t plane = 0; plane < Rule::measured_planes; ++plane)
                state[plane] = source.load(plane, i);
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

template <class Rule, class Master, class Run>
std::size_t measure_with(const Rule& rule, const Master& master, const Run& run,
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

template <class Coefficients, class Run>
std::size_t measure(const Coefficients& c, const Run& run, double* weight_lanes,
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

using detail::Bf16Pointers;
using detail::Int8Pointers;
using detail::RunPointers;

template <class Coefficients, class Pointers>
constexpr detail::KernelTable<std::size_t(const Coefficients&, const Pointers&, double*, double*)>
    kernels = SPILLWAY_KERNEL_TABLE(measure);

/// What the references need to know of a rule.
template <class Coefficients>
struct Measured;
template <>
struct Measured<LambCoefficients> {
    using Step = LambStep;
    static constexpr std::size_t planes = 2;  ///< that the direction is found from
};
template <>
struct Measured<LarsCoefficients> {
    using Step = LarsStep;
    static constexpr std::size_t planes = 0;
};

constexpr const char* name = "measure_run";

void require_state(const ElementwiseRun& run, std::size_t planes) {
    detail::require_state(name, run, planes);
}
void require_state(const Bf16Run& run, std::size_t planes) {
    for (std::size_t plane = 0; plane < planes; ++plane)
        detail::require_state_plane(name, "state", plane, run.state[plane]);
}
void require_state(const Int8Run& run, std::size_t planes) {
    detail::require_block(name, run.first_element);
    for (std::size_t plane = 0; plane < planes; ++plane) {
        detail::require_state_plane(name, "codes", plane, run.codes[plane]);
        detail::require_state_plane(name, "scales", plane, run.scales[plane]);
    }
}

RunPointers pointers_of(const ElementwiseRun& run) {
    return detail::pointers_of(run);
}
Bf16Pointers pointers_of(const Bf16Run& run) {
    return {detail::lossy_pointers(run, {}), {run.state[0], run.state[1]}};
}
Int8Pointers pointers_of(const Int8Run& run) {
    return {detail::lossy_pointers(run, {}),
            {run.codes[0], run.codes[1]},
            {run.scales[0], run.scales[1]}};
}

float state_of(const ElementwiseRun& run, MomentKind /*kind*/, std::size_t plane, std::size_t i) {
    return run.state[plane][i];
}
float state_of(const Bf16Run& run, MomentKind /*kind*/, std::size_t plane, std::size_t i) {
    return from_bf16(run.state[plane][i]);
}
float state_of(const Int8Run& run, MomentKind kind, std::size_t plane, std::size_t i) {
    const auto begin = i / block_elements * block_elements;
    return decode(kind, run.codes[plane][begin + code_place(i - begin)],
                  run.scales[plane][i / block_elements]);
}

template <class Coefficients, class Run>
LayerSums measure_by_rule(Isa isa, const Coefficients& coefficients, const Run& run) {
    using Rule = Measured<Coefficients>;
    const auto kernel = kernels<Coefficients, decltype(pointers_of(run))>.at(isa);
    if (run.elements == 0)
        return {};
    detail::require_masters(name, run.master, run.weight, run.residue);
    require_state(run, Rule::planes);
    detail::require_gradient(name, run.gradient);
    std::array<double, detail::sum_lanes> weights{}, directions{};
    std::size_t i = 0;
    if (kernel != nullptr)
        i = kernel(coefficients, pointers_of(run), weights.data(), directions.data());
    for (; i < run.elements; ++i) {
        ElementwiseElement old;
        old.master = run.master != nullptr ? run.master[i] : join({run.weight[i], run.residue[i]});
        for (std::size_t plane = 0; plane < Rule::planes; ++plane)
            old.state[plane] = state_of(run, kinds_of<typename Rule::Step>[plane], plane, i);
        const float gradient = detail::gradient_element(run.gradient, run.gradient_type, i);
        const double w = old.master;
        const double u = prepared(coefficients, old, gradient).direction;
        weights[i % detail::sum_lanes] += w * w;
        directions[i % detail::sum_lanes] += u * u;
    }
    return {detail::add_up_lanes(weights), detail::add_up_lanes(directions)};
}

template <class Run>
LayerSums measure_by(Isa isa, const LayerwiseCoefficients& coefficients, const Run& run) {
    return std::visit([&](const auto& rule) { return measure_by_rule(isa, rule, run); },
                      coefficients.rule);
}

}  // namespace

LayerSums measure_run(Isa isa, const LayerwiseCoefficients& coefficients,
                      const ElementwiseRun& run) {
    return measure_by(isa, coefficients, run);
}
LayerSums measure_run(Isa isa, const LayerwiseCoefficients& coefficients, const Bf16Run& run) {
    return measure_by(isa, coefficients, run);
}
LayerSums measure_run(Isa isa, const LayerwiseCoefficients& coefficients, const Int8Run& run) {
    return measure_by(isa, coefficients, run);
}

}  // namespace spillway::cpu_optim
#endif  // HWY_ONCE
