// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors

// Compiled once per target: the guard flips with HWY_TARGET_TOGGLE instead of closing for good.
#if defined(SPILLWAY_CPU_OPTIM_ADAFACTOR_BLOCKS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_CPU_OPTIM_ADAFACTOR_BLOCKS_INL_H
#undef SPILLWAY_CPU_OPTIM_ADAFACTOR_BLOCKS_INL_H
#else
#define SPILLWAY_CPU_OPTIM_ADAFACTOR_BLOCKS_INL_H
#endif

#include <cstddef>

#include "cpu_optim/adafactor.h"
#include "cpu_optim/detail/adafactor_piece.h"
#include "cpu_optim/detail/gradient_load-inl.h"
#include "cpu_optim/detail/lane_sum.h"
#include "cpu_optim/detail/master-inl.h"
#include "cpu_optim/detail/square_sum-inl.h"
#include "hwy/highway.h"

// The kernels of Adafactor: adafactor_reference.cpp line by line. All but the last take whole
// blocks of sixteen elements that start at lane 0 of the sums.

#if SPILLWAY_VECTOR_TARGET
HWY_BEFORE_NAMESPACE();
namespace spillway::cpu_optim {
namespace HWY_NAMESPACE {
namespace {

constexpr std::size_t block_elements = detail::sum_lanes;

class AdafactorRule {
  public:
    HWY_INLINE explicit AdafactorRule(const AdafactorCoefficients& c)
        : scale_{hn::Set(FloatTag(), c.gradient_scale)},
          share_{hn::Set(FloatTag(), static_cast<float>(c.one_minus_beta2))},
          least_variance_{hn::Set(FloatTag(), c.least_variance)},
          decay_{hn::Set(FloatTag(), c.decay)},
          decays_{hn::FirstN(FloatTag(), c.decays == Term::on ? hn::Lanes(FloatTag()) : 0)} {}

    HWY_INLINE FloatVector scaled(FloatVector gradient) const { return hn::Mul(gradient, scale_); }
    HWY_INLINE FloatVector moved_variance(FloatVector variance, FloatVector g) const {
        const auto way = hn::Sub(hn::Mul(g, g), variance);
        return with_one_nan(hn::MulAdd(share_, way, variance));
    }
    /// A variance that is NaN is not less than the least one, and stays.
    HWY_INLINE FloatVector update(FloatVector variance, FloatVector g) const {
        const auto is_less = hn::Lt(variance, least_variance_);
        return hn::Div(g, hn::Sqrt(hn::IfThenElse(is_less, least_variance_, variance)));
    }
    HWY_INLINE FloatVector weight(FloatVector step, FloatVector w, FloatVector u) const {
        const auto decayed = hn::IfThenElse(decays_, hn::NegMulAdd(decay_, w, w), w);
        return with_one_nan(hn::NegMulAdd(step, u, decayed));
    }

  private:
    FloatVector scale_, share_, least_variance_, decay_;
    hn::Mask<FloatTag> decays_;
};

template <GradientType type, class Master>
void square_blocks_of(float scale, const Master& master, const detail::RunPointers& run,
                      double* HWY_RESTRICT row_lanes, double* HWY_RESTRICT column_squares,
                      double* HWY_RESTRICT weight_lanes) {
    const FloatTag d;
    const auto scales = hn::Set(d, scale);
    const void* const gradient = run.gradient;
    const std::size_t elements = run.elements;
    SquareSum row(row_lanes), weights(weight_lanes);
    alignas(64) float g[block_elements];
    alignas(64) float w[block_elements];
    for (std::size_t first = 0; first < elements; first += block_elements) {
        for (std::size_t i = 0; i < block_elements; i += hn::Lanes(d)) {
            hn::Store(hn::Mul(load_gradient<type>(d, gradient, first + i), scales), d, g + i);
            hn::Store(master.load(first + i), d, w + i);
        }
        row.add_row(g, column_squares + first);
        weights.add_row(w);
    }
    row.store(row_lanes);
    weights.store(weight_lanes);
}

template <GradientType type>
void update_blocks_of(const AdafactorCoefficients& c, const detail::AdafactorPiece& piece,
                      double* HWY_RESTRICT lanes) {
    const FloatTag d;
    const AdafactorRule rule(c);
    const auto relative_row = hn::Set(d, piece.relative_row);
    const float* const variances = piece.variances;
    const void* const gradient = piece.run.gradient;
    const std::size_t elements = piece.run.elements;
    SquareSum sum(lanes);
    alignas(64) float u[block_elements];
    for (std::size_t first = 0; first < elements; first += block_elements) {
        for (std::size_t i = 0; i < block_elements; i += hn::Lanes(d)) {
            const auto g = rule.scaled(load_gradient<type>(d, gradient, first + i));
            const auto variance = hn::Mul(relative_row, hn::LoadU(d, variances + first + i));
            hn::Store(rule.update(variance, g), d, u + i);
        }
        sum.add_row(u);
    }
    sum.store(lanes);
}

template <GradientType type, class Master>
void variance_blocks_of(const AdafactorCoefficients& c, const Master& master,
                        const detail::RunPointers& run, double* HWY_RESTRICT weight_lanes,
                        double* HWY_RESTRICT update_lanes) {
    const FloatTag d;
    const AdafactorRule rule(c);
    float* const variances = run.state[0];
    const void* const gradient = run.gradient;
    const std::size_t elements = run.elements;
    SquareSum weights(weight_lanes), updates(update_lanes);
    alignas(64) float w[block_elements];
    alignas(64) float u[block_elements];
    for (std::size_t first = 0; first < elements; first += block_elements) {
        for (std::size_t i = 0; i < block_elements; i += hn::Lanes(d)) {
            const auto g = rule.scaled(load_gradient<type>(d, gradient, first + i));
            float* const at = variances + first + i;
            const auto variance = rule.moved_variance(hn::LoadU(d, at), g);
            hn::StoreU(variance, d, at);
            hn::Store(rule.update(variance, g), d, u + i);
            hn::Store(master.load(first + i), d, w + i);
        }
        weights.add_row(w);
        updates.add_row(u);
    }
    weights.store(weight_lanes);
    updates.store(update_lanes);
}

template <GradientType type, class Master>
detail::Progress apply_vectors_of(const AdafactorCoefficients& c, float step, const Master& master,
                                  const detail::AdafactorPiece& piece) {
    const FloatTag d;
    const AdafactorRule rule(c);
    const std::size_t lanes = hn::Lanes(d);
    const auto relative_row = hn::Set(d, piece.relative_row);
    const auto steps = hn::Set(d, step);
    const auto largest = hn::BitCast(d, hn::Set(BitsTag(), Master::largest_bits));
    const float* const variances = piece.variances;
    const void* const gradient = piece.run.gradient;
    const std::size_t elements = piece.run.elements;
    std::size_t nonfinite = 0;
    std::size_t i = 0;
    for (; i + lanes <= elements; i += lanes) {
        const auto g = rule.scaled(load_gradient<type>(d, gradient, i));
        const auto variance = hn::Mul(relative_row, hn::LoadU(d, variances + i));
        const auto w = rule.weight(steps, master.load(i), rule.update(variance, g));
        nonfinite += lanes - hn::CountTrue(d, hn::Le(hn::Abs(w), largest));
        master.store(w, i);
    }
    return {i, nonfinite};
}

/// body(master, type) of a run, `type` an object that holds its type of gradient.
template <GradientType type>
struct OfType {
    static constexpr GradientType value = type;
};
template <class Body>
auto with_gradient_type(GradientType type, const Body& body) {
    if (type == GradientType::bf16)
        return body(OfType<GradientType::bf16>());
    if (type == GradientType::fp16)
        return body(OfType<GradientType::fp16>());
    return body(OfType<GradientType::fp32>());
}
template <class Body>
auto with_formats(const detail::RunPointers& run, const Body& body) {
    return with_gradient_type(run.gradient_type, [&](auto type) {
        return run.master != nullptr ? body(WholeMaster<>{run.master}, type)
                                     : body(HalvedMaster<>{run.weight, run.residue}, type);
    });
}

void square_blocks(float scale, const detail::RunPointers& run, double* row_lanes,
                   double* column_squares, double* weight_lanes) {
    with_formats(run, [&](const auto& master, auto type) {
        square_blocks_of<type.value>(scale, master, run, row_lanes, column_squares, weight_lanes);
    });
}
void update_blocks(const AdafactorCoefficients& c, const detail::AdafactorPiece& piece,
                   double* lanes) {
    with_gradient_type(piece.run.gradient_type,
                       [&](auto type) { update_blocks_of<type.value>(c, piece, lanes); });
}
void variance_blocks(const AdafactorCoefficients& c, const detail::RunPointers& run,
                     double* weight_lanes, double* update_lanes) {
    with_formats(run, [&](const auto& master, auto type) {
        variance_blocks_of<type.value>(c, master, run, weight_lanes, update_lanes);
    });
}
detail::Progress apply_vectors(const AdafactorCoefficients& c, float step,
                               const detail::AdafactorPiece& piece) {
    return with_formats(piece.run, [&](const auto& master, auto type) {
        return apply_vectors_of<type.value>(c, step, master, piece);
    });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu_optim
HWY_AFTER_NAMESPACE();
#endif  // SPILLWAY_VECTOR_TARGET

#endif  // per-target guard
