// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cpu_optim/layerwise.h"
#include "tests/offload/whole_state.h"

namespace spillway::testing {

/// One tensor under an optimizer of whole tensors: whole arrays, the scalar reference, pass after
/// pass, the second from what the first found. Only the edges of the tiles that its sums are added
/// up by come from the global order.
class WholeLayer {
  public:
    WholeLayer(cpu_optim::StateFormat format, std::size_t elements) : state_(format, elements) {}

    /// `first_in_order`: of the tensor's elements; `stream.step`: which of its steps it is.
    void update(const cpu_optim::LayerwiseHyperParameters& hyper, double gradient_scale,
                const cpu_optim::RoundingStream& stream, std::uint64_t first_in_order,
                std::span<float> masters, std::span<const float> gradients);
    [[nodiscard]] std::vector<float> plane(const cpu_optim::LayerwiseHyperParameters& hyper,
                                           std::size_t number) const {
        return state_.values(moment_kinds(hyper)[number], number);
    }

  private:
    WholeState state_;
};

}  // namespace spillway::testing
