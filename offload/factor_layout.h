// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "offload/element_order.h"

namespace spillway::offload {

/// How an optimizer keeps second moments.
enum class SecondMoments : std::uint8_t {
    planes,    ///< a value for each element, in planes, or none
    factored,  ///< few (FactorLayout): they rest in host memory and go into the tables of commits
};

/// A tensor's fp32 values: of a matrix one for each row, then one for each column. Of more than two
/// dimensions, the last two are matrices of their own: the rows of all, then the columns of all. A
/// tensor of one dimension or none is a vector, with a value for each element.
struct FactoredTensor {
    std::uint64_t matrices = 0;      ///< 0: a vector
    std::uint64_t rows = 0;          ///< of each matrix
    std::uint64_t columns = 0;       ///< of each matrix; a vector's elements
    std::uint64_t first_value = 0;   ///< values of the tensors before
    std::uint64_t first_factor = 0;  ///< those of matrices among them
    std::uint64_t first_matrix = 0;  ///< matrices of the tensors before

    [[nodiscard]] bool is_vector() const noexcept { return matrices == 0; }
    [[nodiscard]] std::uint64_t row_values() const noexcept { return matrices * rows; }
    [[nodiscard]] std::uint64_t column_values() const noexcept {
        return is_vector() ? columns : matrices * columns;
    }
    [[nodiscard]] std::uint64_t values() const noexcept { return row_values() + column_values(); }
};

/// The values of all tensors, one after another. It depends on the tensors alone. A tensor without
/// elements has none.
class FactorLayout {
  public:
    explicit FactorLayout(const ElementOrder& order);

    [[nodiscard]] const FactoredTensor& of(TensorId tensor) const { return tensors_.at(tensor); }
    [[nodiscard]] std::uint64_t values() const noexcept { return values_; }
    /// Of matrices alone.
    [[nodiscard]] std::uint64_t factors() const noexcept { return factors_; }
    [[nodiscard]] std::uint64_t matrices() const noexcept { return matrices_; }

  private:
    std::vector<FactoredTensor> tensors_;
    std::uint64_t values_ = 0;
    std::uint64_t factors_ = 0;
    std::uint64_t matrices_ = 0;
};

/// Values that go into each commit's table.
[[nodiscard]] std::uint64_t factor_values(const ElementOrder& order, SecondMoments moments);

}  // namespace spillway::offload
