// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "cpu_optim/elementwise.h"
#include "cpu_optim/isa.h"
#include "cpu_optim/moment_codec.h"
#include "cpu_optim/state_format.h"
#include "cpu_optim/state_rounding.h"

/// The elementwise rules over state kept in fewer bits: decode, update in fp32, encode, in one pass
/// over a run. What an update does to the weight is what elementwise.h does with the decoded state.
namespace spillway::cpu_optim {

/// One run of elements of one tensor; weights and gradient as in ElementwiseRun. No two planes
/// overlap; no alignment is needed.
struct LossyRun {
    std::size_t elements = 0;
    std::uint64_t first_element = 0;  ///< of the tensor; with int8 a multiple of block_elements
    float* master = nullptr;
    std::uint16_t* weight = nullptr;
    std::int16_t* residue = nullptr;
    const void* gradient = nullptr;
    GradientType gradient_type = GradientType::fp32;
};

/// Its state in bf16. state[i] is needed for i below state_planes().
struct Bf16Run : LossyRun {
    std::array<std::uint16_t*, most_lossy_planes> state{};
};

/// Its state in int8: whole blocks of codes, the last one too if the run ends inside it (the
/// tensor does then), and a scale for each.
struct Int8Run : LossyRun {
    std::array<std::uint8_t*, most_lossy_planes> codes{};
    std::array<std::uint8_t*, most_lossy_planes> scales{};
};

/// Updates the run in place. Returns what update_run() of elementwise.h does. Bit-identical on
/// every Isa and for every way of cutting a tensor in runs (int8: on block edges). Throws
/// std::invalid_argument, before anything changes, as update_run(), and on a rule that check()
/// refuses with the format or a run that does not start on a block.
[[nodiscard]] std::size_t update_run(Isa isa, const ElementwiseCoefficients& coefficients,
                                     const RoundingStream& stream, const Bf16Run& run);
[[nodiscard]] std::size_t update_run(Isa isa, const ElementwiseCoefficients& coefficients,
                                     const RoundingStream& stream, const Int8Run& run);

}  // namespace spillway::cpu_optim
