// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cpu_optim/isa.h"
#include "offload/element_order.h"
#include "offload/offload_engine.h"
#include "offload/plane.h"

namespace spillway::offload::detail {

/// What a step's fp32 gradients sum up to, scanned tile by tile in any order: sums are added over
/// tiles in order, so the order of the scans changes no bit. For one thread.
class GradientScans {
  public:
    GradientScans(const ElementOrder& order, GradientNorms norms);

    /// Forgets the former step.
    void begin_step();
    /// `gradient`: of all elements of `tiles`, padding 0.
    void scan(cpu_optim::Isa isa, TileRange tiles, const float* gradient);
    /// The first tensor that has a value that is not finite, "" if none.
    [[nodiscard]] const std::string& nonfinite_tensor() const noexcept { return nonfinite_tensor_; }
    /// Of a step all of whose tiles were scanned.
    [[nodiscard]] GradientSummary summary() const;

  private:
    [[nodiscard]] std::string first_nonfinite_tensor(std::uint64_t tile,
                                                     const float* gradient) const;
    void scan_tensors(cpu_optim::Isa isa, std::uint64_t tile, const float* gradient);
    [[nodiscard]] std::vector<double> tensor_squares() const;

    const ElementOrder& order_;
    std::vector<double> tile_squares_;
    std::vector<std::uint64_t> tile_nonfinite_;
    /// Of a tensor's part of a tile, if wanted. The number of tiles before such a part plus that of
    /// tensors before it is its own alone.
    std::vector<double> part_squares_;
    std::string nonfinite_tensor_;
    std::uint64_t nonfinite_tile_ = 0;
};

/// Of a step, in host memory: what the scans and the update's board know of each tile, and, for
/// each tensor, a part more, its sum and its scale.
[[nodiscard]] constexpr std::size_t gradient_scans_bytes(std::uint64_t tiles,
                                                         std::size_t tensors) noexcept {
    return static_cast<std::size_t>(tiles) * 4 * sizeof(double) + tensors * 3 * sizeof(double);
}

}  // namespace spillway::offload::detail
