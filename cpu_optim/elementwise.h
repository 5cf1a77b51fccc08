// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <variant>

#include "cpu_optim/elementwise_coefficients.h"
#include "cpu_optim/gradient_scan.h"
#include "cpu_optim/isa.h"

/// The elementwise optimizers: every element is updated from its own gradient and its own state
/// alone, so runs may be cut anywhere. One family, one kernel source, one reference each.
namespace spillway::cpu_optim {

enum class WeightDecay {
    decoupled,  ///< w -= lr * weight_decay * w, before the moments are used (AdamW); done at a
                ///< weight_decay of 0 too, where it turns an infinite weight into NaN
    l2,         ///< g += weight_decay * w (Adam)
};
enum class Amsgrad { off, on };
enum class Objective { minimise, maximise };
enum class Nesterov { off, on };
enum class Centred { off, on };

/// Kingma & Ba 2015 (arXiv:1412.6980), Algorithm 1; decoupled decay: Loshchilov & Hutter 2019
/// (arXiv:1711.05101), Algorithm 2; amsgrad: Reddi et al. 2018. State: m, v, and with amsgrad the
/// running maximum of v. With nesterov it is NAdam (Dozat 2016, "Incorporating Nesterov momentum
/// into Adam", Algorithm 2), as torch: beta1 at step t is mu(t) = beta1 * (1 - 0.96^(t *
/// momentum_decay) / 2) in the bias corrections, whose product over the steps so far is taken with
/// today's beta1, as its powers are in Adam (torch's running product keeps each step's own).
struct AdamHyperParameters {
    double learning_rate = 1e-3;
    double beta1 = 0.9;
    double beta2 = 0.999;
    double epsilon = 1e-8;
    double weight_decay = 0.01;
    WeightDecay decay = WeightDecay::decoupled;
    Amsgrad amsgrad = Amsgrad::off;
    Objective objective = Objective::minimise;
    Nesterov nesterov = Nesterov::off;  ///< not with amsgrad
    double momentum_decay = 4e-3;       ///< of nesterov
};

/// torch's SGD (Sutskever et al. 2013): buffer = momentum * buffer + (1 - dampening) * g, but g at
/// a tensor's first update; nesterov: g + momentum * buffer. State: the buffer, or none without
/// momentum.
struct SgdHyperParameters {
    double learning_rate = 1e-3;
    double momentum = 0;
    double dampening = 0;
    double weight_decay = 0;  ///< l2
    Nesterov nesterov = Nesterov::off;
    Objective objective = Objective::minimise;
};

/// Duchi et al. 2011, as torch: lr / (1 + (t - 1) * learning_rate_decay). State: the sum of
/// squares, which starts at initial_accumulator_value.
struct AdagradHyperParameters {
    double learning_rate = 1e-2;
    double learning_rate_decay = 0;
    double weight_decay = 0;  ///< l2
    double initial_accumulator_value = 0;
    double epsilon = 1e-10;
    Objective objective = Objective::minimise;
};

/// Chen et al. 2023 (arXiv:2302.06675), Algorithm 2, decoupled decay. State: m.
struct LionHyperParameters {
    double learning_rate = 1e-4;
    double beta1 = 0.9;
    double beta2 = 0.99;
    double weight_decay = 0;
    Objective objective = Objective::minimise;
};

/// Hinton 2012 (lecture 6e), Graves 2013 (arXiv:1308.0850) when centred, as torch. State: the mean
/// of squares, then the momentum buffer (with momentum), then the mean (when centred), in that
/// order.
struct RmspropHyperParameters {
    double learning_rate = 1e-2;
    double alpha = 0.99;
    double epsilon = 1e-8;
    double weight_decay = 0;  ///< l2
    double momentum = 0;
    Centred centred = Centred::off;
    Objective objective = Objective::minimise;
};

using HyperParameters =
    std::variant<AdamHyperParameters, SgdHyperParameters, AdagradHyperParameters,
                 LionHyperParameters, RmspropHyperParameters>;

inline constexpr std::size_t most_state_planes = 3;

/// "Adam", "AdamW", "NAdam", "SGD" ...: for messages.
[[nodiscard]] std::string_view optimizer_name(const HyperParameters& hyper) noexcept;
/// fp32 values kept per parameter: 0 to most_state_planes.
[[nodiscard]] std::size_t state_planes(const HyperParameters& hyper) noexcept;
/// Throws std::invalid_argument naming optimizer, field, value and what is allowed.
void check(const HyperParameters& hyper);

/// The numbers one step of one tensor needs, derived in double and narrowed once. Made by
/// make_coefficients alone.
struct ElementwiseCoefficients {
    std::variant<AdamCoefficients, SgdCoefficients, AdagradCoefficients, LionCoefficients,
                 RmspropCoefficients>
        rule;
};

/// `step` is this tensor's own count, 1 at its first update. Powers by repeated squaring in double.
/// `gradient_scale` multiplies every gradient (clip coefficient, 1 / loss scale). Throws as
/// check().
[[nodiscard]] ElementwiseCoefficients make_coefficients(const HyperParameters& hyper,
                                                        std::uint64_t step, double gradient_scale);

/// One run of elements. Either `master` is set (an fp32 weight is its own master), or `weight` and
/// `residue` are (the two halves of a split master, split_master.h). `state[i]` is needed for i
/// below state_planes(). No two of them overlap; no alignment is needed.
struct ElementwiseRun {
    std::size_t elements = 0;
    float* master = nullptr;
    std::uint16_t* weight = nullptr;
    std::int16_t* residue = nullptr;
    std::array<float*, most_state_planes> state{};
    const void* gradient = nullptr;
    GradientType gradient_type = GradientType::fp32;
};

/// Updates the run in place. Returns the number of new masters that are not finite or, when split,
/// have no finite bf16 half (they are stored as they are; NaN stays NaN). Bit-identical on every
/// Isa and for every way of cutting a run in pieces. Throws std::invalid_argument, before it
/// changes anything, naming a plane that is missing or an `isa` that does not run here.
[[nodiscard]] std::size_t update_run(Isa isa, const ElementwiseCoefficients& coefficients,
                                     const ElementwiseRun& run);

}  // namespace spillway::cpu_optim
