// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <variant>

#include "cpu_optim/elementwise.h"
#include "cpu_optim/isa.h"
#include "cpu_optim/layerwise_coefficients.h"
#include "cpu_optim/lossy_state.h"
#include "cpu_optim/state_format.h"

/// The layerwise optimizers for large batches: each tensor's step is as long as its weights' norm
/// says, so an update takes two passes over a whole tensor. Pass 1 (measure_run) finds the
/// direction and sums squares, tile by tile, and changes nothing; the sums are added up over the
/// tensor's tiles in order and give its trust ratio; pass 2 (update_run) finds the direction again,
/// from what it was found from before, and makes new state and weights, element by element.
namespace spillway::cpu_optim {

/// You et al. 2020 (arXiv:1904.00962), Algorithm 2, with bias correction and decoupled decay inside
/// the direction: r = m_hat / (sqrt(v_hat) + epsilon), u = r + weight_decay * w, and w -=
/// learning_rate * phi(|w|) / |u| * u, phi clamping to the two bounds. State: m, v.
struct LambHyperParameters {
    double learning_rate = 1e-3;
    double beta1 = 0.9;
    double beta2 = 0.999;
    double epsilon = 1e-6;
    double weight_decay = 0.01;
    double least_weight_norm = 0;
    double most_weight_norm = std::numeric_limits<double>::infinity();
    Objective objective = Objective::minimise;
};

/// You et al. 2017 (arXiv:1708.03888), Algorithm 1: ratio = trust_coefficient * |w| / (|g| +
/// weight_decay * |w|), buffer = momentum * buffer + learning_rate * ratio * (g + weight_decay *
/// w), w -= buffer. State: the buffer.
struct LarsHyperParameters {
    double learning_rate = 1e-1;
    double momentum = 0.9;
    double weight_decay = 1e-4;
    double trust_coefficient = 1e-3;
    Objective objective = Objective::minimise;
};

using LayerwiseHyperParameters = std::variant<LambHyperParameters, LarsHyperParameters>;

/// Whether an element's update needs anything of the others.
enum class Reach { element, tensor };
/// What placement has to know of an optimizer.
struct OptimizerNeeds {
    std::size_t state_planes;
    std::size_t passes;           ///< over all that it updates
    std::size_t gradient_passes;  ///< that read the gradient, the first ones
    Reach reach;
    std::size_t measured_planes = 0;  ///< of state, that the first of two passes reads
    std::size_t row_vectors = 0;      ///< fp32 values kept per row of each matrix
    std::size_t column_vectors = 0;   ///< fp32 values kept per column of each matrix
};
[[nodiscard]] OptimizerNeeds needs(const HyperParameters& hyper) noexcept;
[[nodiscard]] OptimizerNeeds needs(const LayerwiseHyperParameters& hyper) noexcept;

/// "LAMB", "LARS": for messages.
[[nodiscard]] std::string_view optimizer_name(const LayerwiseHyperParameters& hyper) noexcept;
/// Throws std::invalid_argument naming optimizer, field, value and what is allowed.
void check(const LayerwiseHyperParameters& hyper);
/// The same; every format can keep the state.
void check(const LayerwiseHyperParameters& hyper, StateFormat format);
/// As moment_kinds() of state_format.h.
[[nodiscard]] std::array<MomentKind, most_lossy_planes> moment_kinds(
    const LayerwiseHyperParameters& hyper) noexcept;

/// What both passes of one step of one tensor need. Made by make_coefficients alone.
struct LayerwiseCoefficients {
    std::variant<LambCoefficients, LarsCoefficients> rule;
};
/// `step` and `gradient_scale` as for the elementwise optimizers. Throws as check().
[[nodiscard]] LayerwiseCoefficients make_coefficients(const LayerwiseHyperParameters& hyper,
                                                      std::uint64_t step, double gradient_scale);

/// Sums over a tile, in double, in the shape of scan_gradient(); over a tensor, the sums of its
/// tiles added in order.
struct LayerSums {
    double weight_squares = 0;
    double direction_squares = 0;  ///< of LAMB's u, of LARS's scaled gradient

    LayerSums& operator+=(const LayerSums& more) noexcept {
        weight_squares += more.weight_squares;
        direction_squares += more.direction_squares;
        return *this;
    }
};

/// What a step of this tensor is multiplied by, learning rate included. A tensor of which either
/// norm is 0 takes a ratio of 1. Throws std::invalid_argument if a norm is not finite (scan the
/// gradients before pass 1) or no float holds the step.
[[nodiscard]] float layer_step(const LayerwiseHyperParameters& hyper, const LayerSums& sums);
/// The same without a trust ratio, for tensors that are to be left out (biases, norms).
[[nodiscard]] float layer_step_without_trust(const LayerwiseHyperParameters& hyper);

/// Pass 1 over one tile, whose planes are as update_run() needs them (LARS's buffer may be left
/// out). Lossy state is decoded, so what is measured is what pass 2 will start from. Bit-identical
/// on every Isa. Throws as update_run().
[[nodiscard]] LayerSums measure_run(Isa isa, const LayerwiseCoefficients& coefficients,
                                    const ElementwiseRun& run);
[[nodiscard]] LayerSums measure_run(Isa isa, const LayerwiseCoefficients& coefficients,
                                    const Bf16Run& run);
[[nodiscard]] LayerSums measure_run(Isa isa, const LayerwiseCoefficients& coefficients,
                                    const Int8Run& run);

/// What pass 2 needs of a tensor.
struct LayerwiseStep {
    std::variant<LambStep, LarsStep> rule;
};
/// `step`: of layer_step().
[[nodiscard]] LayerwiseStep with_step(const LayerwiseCoefficients& coefficients,
                                      float step) noexcept;

/// Pass 2: as the update_run() of elementwise.h and those of lossy_state.h, in all they say.
[[nodiscard]] std::size_t update_run(Isa isa, const LayerwiseStep& step, const ElementwiseRun& run);
[[nodiscard]] std::size_t update_run(Isa isa, const LayerwiseStep& step,
                                     const RoundingStream& stream, const Bf16Run& run);
[[nodiscard]] std::size_t update_run(Isa isa, const LayerwiseStep& step,
                                     const RoundingStream& stream, const Int8Run& run);

}  // namespace spillway::cpu_optim
