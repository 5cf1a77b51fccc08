// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu_optim/elementwise.h"
#include "cpu_optim/layerwise.h"
#include "cpu_optim/state_rounding.h"
#include "offload/detail/update/chunk_update.h"

namespace spillway::offload::detail {

/// A tensor's elements in one tile of a chunk.
struct TilePart {
    const ChunkPlanes& chunk;
    std::uint64_t index = 0;      ///< of the tile in the chunk
    std::uint64_t in_tile = 0;    ///< first element, a multiple of tensor_alignment_elements
    std::uint64_t in_tensor = 0;  ///< the same element's number in the tensor
};

/// Updates `run`, whose weights and gradient are set, and its state in the format in which the
/// chunk keeps it. Returns as cpu_optim::update_run(). Thread-safe on different parts.
[[nodiscard]] std::size_t update_tile_part(cpu_optim::Isa isa,
                                           const cpu_optim::ElementwiseCoefficients& coefficients,
                                           const cpu_optim::RoundingStream& stream,
                                           const TilePart& part,
                                           const cpu_optim::ElementwiseRun& run);
/// The same in pass 2 of an optimizer of whole tensors.
[[nodiscard]] std::size_t update_tile_part(cpu_optim::Isa isa, const cpu_optim::LayerwiseStep& step,
                                           const cpu_optim::RoundingStream& stream,
                                           const TilePart& part,
                                           const cpu_optim::ElementwiseRun& run);
/// Its pass 1, which changes nothing.
[[nodiscard]] cpu_optim::LayerSums measure_tile_part(
    cpu_optim::Isa isa, const cpu_optim::LayerwiseCoefficients& coefficients, const TilePart& part,
    const cpu_optim::ElementwiseRun& run);

}  // namespace spillway::offload::detail
