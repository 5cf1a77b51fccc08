// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu_optim/elementwise.h"
#include "cpu_optim/half_format.h"
#include "cpu_optim/weight_average.h"

/// Updates with what else is made of the new weights, in one pass over memory.
namespace spillway::cpu_optim {

/// An ElementwiseRun and, if set, planes beside it. With `half` and neither a master nor halves of
/// a split one, `half` is the weight itself, rounded to nearest even after every update; else it is
/// given a copy of the new weights, so rounded. No two planes overlap.
struct FusedRun {
    ElementwiseRun run;
    std::uint16_t* half = nullptr;
    HalfFormat half_format = HalfFormat::bf16;
    float* average = nullptr;  ///< of the new weights as they are stored (weight_average.h)
    AverageCoefficients average_coefficients{.starts = Term::off, .share = 0};
};

/// update_run(), then narrow() into `half`, then update_average(): the same bits, but block by
/// block while a block lies in the nearest cache. Returns the number of new weights that are not
/// finite in every format they are stored in. Bit-identical on every Isa and for every way of
/// cutting. Throws as they do, before it changes anything.
[[nodiscard]] std::size_t update_fused(Isa isa, const ElementwiseCoefficients& coefficients,
                                       const FusedRun& run);

}  // namespace spillway::cpu_optim
