// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>

#include "cpu_optim/elementwise_coefficients.h"
#include "cpu_optim/isa.h"

/// Averages of the weights over the updates, in a plane of fp32 beside them (Polyak & Juditsky
/// 1992), as torch.optim.swa_utils.AveragedModel. The first average is the weights themselves; each
/// later one moves by a share of the way to them: average += share * (weight - average).
namespace spillway::cpu_optim {

/// Exponential moving average: share = 1 - decay.
struct EmaParameters {
    double decay = 0.999;
};
/// Equal average of all that was taken up (Izmailov et al. 2018, arXiv:1803.05407): share = 1 / (n
/// + 1) after n.
struct SwaParameters {};
using AverageParameters = std::variant<EmaParameters, SwaParameters>;

struct AverageCoefficients {
    Term starts;  ///< on: the average is not read
    float share;
};

/// `averaged` is how many times the average has taken the weights up so far. Throws
/// std::invalid_argument naming field, value and what is allowed.
[[nodiscard]] AverageCoefficients make_average_coefficients(const AverageParameters& parameters,
                                                            std::uint64_t averaged);

/// The scalar reference. A product is fused with the addition after it where std::fma stands; every
/// NaN it returns is the same one.
[[nodiscard]] float averaged(const AverageCoefficients& coefficients, float average, float weight);

/// One run of elements: either `master` is set, or `weight` and `residue` are (split_master.h).
/// `average` overlaps none of them; no alignment is needed.
struct AverageRun {
    std::size_t elements = 0;
    const float* master = nullptr;
    const std::uint16_t* weight = nullptr;
    const std::int16_t* residue = nullptr;
    float* average = nullptr;
};

/// Updates the averages of a run. Bit-identical on every Isa and for every way of cutting a run in
/// pieces. Throws std::invalid_argument, before it changes anything, naming what is missing or an
/// `isa` that does not run here.
void update_average(Isa isa, const AverageCoefficients& coefficients, const AverageRun& run);

}  // namespace spillway::cpu_optim
