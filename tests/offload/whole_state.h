// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cpu_optim/layerwise.h"
#include "cpu_optim/lossy_state.h"

namespace spillway::testing {

/// The state of one tensor as whole arrays in one format, updated by the scalar reference: no
/// chunks, tiles or threads.
class WholeState {
  public:
    WholeState(cpu_optim::StateFormat format, std::size_t elements);

    /// One step of the whole tensor.
    void update(const cpu_optim::ElementwiseCoefficients& coefficients,
                const cpu_optim::RoundingStream& stream, std::span<float> masters,
                std::span<const float> gradients);
    /// Pass 2 of an optimizer of whole tensors.
    void update(const cpu_optim::LayerwiseStep& layer_step, const cpu_optim::RoundingStream& stream,
                std::span<float> masters, std::span<const float> gradients);
    /// What a plane holds, in fp32.
    [[nodiscard]] std::vector<float> values(cpu_optim::MomentKind kind, std::size_t plane) const;

  private:
    template <class Rule>
    void update_by(const Rule& rule, const cpu_optim::RoundingStream& stream,
                   std::span<float> masters, std::span<const float> gradients);

    cpu_optim::StateFormat format_;
    std::size_t elements_;
    std::vector<std::vector<float>> floats_;
    std::vector<std::vector<std::uint16_t>> halves_;
    std::vector<std::vector<std::uint8_t>> codes_, scales_;
};

}  // namespace spillway::testing
