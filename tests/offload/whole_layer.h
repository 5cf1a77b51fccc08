// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cpu_optim/layerwise.h"

namespace spillway::testing {

/// One tensor under an optimizer of whole tensors: whole arrays, the scalar reference, pass after
/// pass. Only the edges of the tiles that its sums are added up by come from the global order.
class WholeLayer {
  public:
    explicit WholeLayer(std::size_t elements);

    /// `first_in_order`: of the tensor's elements.
    void update(const cpu_optim::LayerwiseHyperParameters& hyper, std::uint64_t step,
                double gradient_scale, std::uint64_t first_in_order, std::span<float> masters,
                std::span<const float> gradients);
    [[nodiscard]] const std::vector<float>& plane(std::size_t number) const {
        return planes_[number];
    }

  private:
    std::array<std::vector<float>, 2> planes_;
};

}  // namespace spillway::testing
