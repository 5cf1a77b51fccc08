// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "offload/detail/threads/update_threads.h"
#include "offload/element_order.h"
#include "offload/factor_layout.h"

namespace spillway::offload::detail {

/// Adjacent elements of a matrix tensor in one tile, and the columns (of all its matrices, one
/// after another) that they lie in. Of a row wider than a tile it is a piece.
struct ColumnPiece {
    TensorId tensor = 0;
    std::uint64_t first = 0;  ///< element in the tensor
    std::uint64_t end = 0;
    std::uint64_t first_column = 0;
    std::uint64_t columns = 0;
};

/// The factored second moments of all tensors, and what a step adds up on its way to new ones.
///
/// Sums have one shape whatever the chunks: each tile's own, in the lanes of cpu_optim, then over a
/// tensor's tiles in order. Row sums are those of the tile in which a row ends, then of those that
/// have parts of it before, in order. Column sums are added up turn by turn of a few tiles, since
/// those of all tiles would take as much room as the gradients.
class FactoredMoments {
  public:
    explicit FactoredMoments(const ElementOrder& order);
    /// What it allocates.
    [[nodiscard]] static std::size_t bytes(const ElementOrder& order);

    [[nodiscard]] const FactorLayout& layout() const noexcept { return layout_; }
    /// Of all tensors, as the layout has them: what a commit keeps.
    [[nodiscard]] std::vector<float>& values() noexcept { return values_; }
    [[nodiscard]] const std::vector<float>& values() const noexcept { return values_; }
    [[nodiscard]] std::span<float> values_of(TensorId tensor);

    /// Tiles of a turn, at most.
    [[nodiscard]] std::size_t places() const noexcept { return places_.size(); }

    /// Of a tensor's part of a tile.
    struct Measure {
        double weight_squares = 0;
        double update_squares = 0;
        double open_row_squares = 0;  ///< of the row that the part ends within, if it does
    };
    [[nodiscard]] Measure& measure(std::uint64_t tile, TensorId tensor) {
        return measures_[static_cast<std::size_t>(tile) + tensor];
    }
    /// Sums of squares of a matrix tensor's rows and of its columns, laid out as its values.
    [[nodiscard]] std::span<double> squares_of(TensorId tensor);
    /// Of each of its matrices.
    [[nodiscard]] std::span<float> row_means_of(TensorId tensor);

    /// Room, all 0, for the column sums of a piece of the tile at `place` in this turn.
    [[nodiscard]] double* add_piece(std::size_t place, const ColumnPiece& piece);
    /// Adds up the column sums of the turn's tiles, in order, and makes room for the next one.
    void end_turn(UpdateThreads& threads);

  private:
    /// Of one tile in a turn.
    struct Place {
        std::vector<ColumnPiece> pieces;
        std::vector<double> columns;
        std::size_t used = 0;
    };
    void add_up(const Place& place, std::uint64_t stripe);

    FactorLayout layout_;
    std::vector<float> values_;
    std::vector<double> squares_;
    std::vector<float> row_means_;
    std::vector<Measure> measures_;
    std::vector<Place> places_;
};

/// body(piece) of each piece that elements [first, end) of a matrix tensor have, which lie in one
/// tile.
template <class Body>
void for_each_piece(const FactoredTensor& shape, TensorId tensor, std::uint64_t first,
                    std::uint64_t end, const Body& body) {
    const auto of_matrix = shape.rows * shape.columns;
    while (first < end) {
        const auto row_end = (first / shape.columns + 1) * shape.columns;
        const auto piece_end =
            shape.columns > tile_elements && row_end < end ? row_end : end;  // rows apart
        const auto matrix = first / of_matrix;
        ColumnPiece piece{tensor, first, piece_end, matrix * shape.columns, 0};
        if (piece_end <= row_end) {
            piece.first_column += first % shape.columns;
            piece.columns = piece_end - first;
        } else {
            piece.columns = ((piece_end - 1) / of_matrix + 1 - matrix) * shape.columns;
        }
        body(piece);
        first = piece_end;
    }
}

}  // namespace spillway::offload::detail
