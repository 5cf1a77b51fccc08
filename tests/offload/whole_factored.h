// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cpu_optim/adafactor.h"

namespace spillway::testing {

/// One tensor under Adafactor: whole arrays, element by element. Only the edges of the tiles that
/// its sums are added up by come from the global order.
class WholeFactored {
  public:
    /// `first_in_order`: of the tensor's elements.
    WholeFactored(const std::vector<std::uint64_t>& shape, std::uint64_t first_in_order);

    void update(const cpu_optim::AdafactorHyperParameters& hyper, std::uint64_t step,
                double gradient_scale, std::span<float> masters, std::span<const float> gradients);
    /// As offload::FactoredTensor has them.
    [[nodiscard]] const std::vector<float>& values() const noexcept { return values_; }

  private:
    struct Step;

    [[nodiscard]] std::size_t column_of(std::size_t element) const;  ///< of all matrices'
    void move_variances(const Step& step);
    void move_factors(const Step& step);
    [[nodiscard]] float variance(std::size_t element) const;
    template <class Value>
    [[nodiscard]] double squares(std::size_t elements, const Value& value) const;

    std::uint64_t first_in_order_;
    std::size_t matrices_ = 0;  ///< 0: a vector
    std::size_t rows_ = 0;
    std::size_t columns_ = 0;
    std::vector<float> values_;
    std::vector<float> row_means_;
};

}  // namespace spillway::testing
