// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/update/factored_update.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace spillway::offload::detail {
namespace {

using cpu_optim::ElementwiseRun;
using cpu_optim::MatrixRun;

/// `first` elements further, of which `elements`.
ElementwiseRun part_of(const ElementwiseRun& run, std::uint64_t first, std::uint64_t elements) {
    auto part = run;
    part.elements = static_cast<std::size_t>(elements);
    if (run.master != nullptr)
        part.master += first;
    if (run.weight != nullptr) {
        part.weight += first;
        part.residue += first;
    }
    part.gradient = static_cast<const std::byte*>(run.gradient) +
                    first * cpu_optim::gradient_bytes(run.gradient_type);
    return part;
}

/// body(matrix, run) of each matrix that the run reaches into, whose first element is `first` of
/// the tensor.
template <class Body>
void for_each_matrix(const FactoredTensor& shape, std::uint64_t first, const ElementwiseRun& run,
                     const Body& body) {
    const auto of_matrix = shape.rows * shape.columns;
    for (std::uint64_t done = 0; done < run.elements;) {
        const auto at = first + done;
        const auto count = std::min<std::uint64_t>(of_matrix - at % of_matrix, run.elements - done);
        body(at / of_matrix,
             MatrixRun{static_cast<std::size_t>(shape.columns),
                       static_cast<std::size_t>(at % of_matrix), part_of(run, done, count)});
        done += count;
    }
}

/// body(tile, end of the tensor's part of it, as an element of the tensor).
template <class Body>
void for_each_tile_of(const ElementRange& range, const Body& body) {
    for (auto tile = range.begin / tile_elements; tile * tile_elements < range.end; ++tile)
        body(tile, std::min(range.end, (tile + 1) * tile_elements) - range.begin);
}

std::uint64_t tile_of(const TilePart& part) {
    return part.chunk.tiles.begin + part.index;
}

}  // namespace

FactoredUpdate::FactoredUpdate(const ElementOrder& order, FactoredMoments& moments,
                               std::vector<Rule> rules, std::vector<std::size_t> rule_of)
    : order_(order),
      moments_(moments),
      rules_(std::move(rules)),
      rule_of_(std::move(rule_of)),
      settled_(rule_of_.size(), Settled::nothing),
      steps_(rule_of_.size()) {}

cpu_optim::Factors FactoredUpdate::factors(TensorId tensor, std::uint64_t matrix) const {
    const auto& shape = moments_.layout().of(tensor);
    const auto* const values = moments_.values_of(tensor).data();
    return {.rows = values + matrix * shape.rows,
            .columns = values + shape.row_values() + matrix * shape.columns,
            .row_mean = moments_.row_means_of(tensor)[static_cast<std::size_t>(matrix)]};
}

void FactoredUpdate::measure(cpu_optim::Isa isa, MeasuringPass at, TensorId tensor,
                             const TilePart& part, const ElementwiseRun& run) {
    const auto& shape = moments_.layout().of(tensor);
    if (at.pass == 0) {
        if (shape.is_vector())
            move_variance(isa, tensor, part, run);
        else
            sum_squares(isa, at.place, tensor, part, run);
        return;
    }
    if (shape.is_vector())
        return;
    cpu_optim::LaneSum updates;
    for_each_matrix(shape, part.in_tensor, run, [&](std::uint64_t matrix, const MatrixRun& of_it) {
        cpu_optim::sum_updates(isa, rule(tensor).coefficients, of_it, factors(tensor, matrix),
                               updates);
    });
    moments_.measure(tile_of(part), tensor).update_squares = updates.total();
}

void FactoredUpdate::sum_squares(cpu_optim::Isa isa, std::size_t place, TensorId tensor,
                                 const TilePart& part, const ElementwiseRun& run) {
    const auto& shape = moments_.layout().of(tensor);
    auto* const row_squares = moments_.squares_of(tensor).data();
    cpu_optim::BandSums sums;
    for_each_piece(
        shape, tensor, part.in_tensor, part.in_tensor + run.elements,
        [&](const ColumnPiece& piece) {
            auto* const columns = moments_.add_piece(place, piece);
            const auto of_piece =
                part_of(run, piece.first - part.in_tensor, piece.end - piece.first);
            for_each_matrix(
                shape, piece.first, of_piece, [&](std::uint64_t matrix, const MatrixRun& of_it) {
                    const auto first_column = matrix * shape.columns;
                    sums.row_squares = row_squares + matrix * shape.rows;
                    sums.column_squares =
                        columns + (std::max(first_column, piece.first_column) - piece.first_column);
                    sums.first_column = static_cast<std::size_t>(
                        std::max(first_column, piece.first_column) - first_column);
                    cpu_optim::sum_squares(isa, rule(tensor).coefficients, of_it, sums);
                });
        });
    auto& measure = moments_.measure(tile_of(part), tensor);
    measure.weight_squares = sums.weights.total();
    measure.open_row_squares = sums.open_row.total();
}

void FactoredUpdate::move_variance(cpu_optim::Isa isa, TensorId tensor, const TilePart& part,
                                   const ElementwiseRun& run) {
    auto with = run;
    with.state[0] = moments_.values_of(tensor).data() + part.in_tensor;
    cpu_optim::VectorSums sums;
    cpu_optim::prepare_variance(isa, rule(tensor).coefficients, 0, with, sums);
    auto& measure = moments_.measure(tile_of(part), tensor);
    measure.weight_squares = sums.weights.total();
    measure.update_squares = sums.updates.total();
}

void FactoredUpdate::end_turn(UpdateThreads& threads, std::size_t pass) {
    if (pass == 0)
        moments_.end_turn(threads);
}

void FactoredUpdate::settle(TensorId tensor, std::size_t pass) {
    if (pass > 0 && settled_[tensor] == Settled::nothing) {
        move_factors(tensor);
        settled_[tensor] = Settled::factors;
    }
    if (pass > 1 && settled_[tensor] == Settled::factors) {
        find_step(tensor);
        settled_[tensor] = Settled::step;
    }
}

void FactoredUpdate::move_factors(TensorId tensor) {
    const auto& shape = moments_.layout().of(tensor);
    if (shape.is_vector())
        return;
    auto* const rows = moments_.squares_of(tensor).data();
    auto* const columns = rows + shape.row_values();
    for_each_tile_of(order_.range(tensor), [&](std::uint64_t tile, std::uint64_t end) {
        if (end % shape.columns != 0)
            rows[end / shape.columns] += moments_.measure(tile, tensor).open_row_squares;
    });
    auto* const values = moments_.values_of(tensor).data();
    for (std::uint64_t matrix = 0; matrix < shape.matrices; ++matrix) {
        const auto moved = cpu_optim::update_factors(
            rule(tensor).coefficients,
            {static_cast<std::size_t>(shape.rows), static_cast<std::size_t>(shape.columns)},
            rows + matrix * shape.rows, columns + matrix * shape.columns,
            values + matrix * shape.rows, values + shape.row_values() + matrix * shape.columns);
        moments_.row_means_of(tensor)[static_cast<std::size_t>(matrix)] = moved.row_mean;
    }
    std::fill_n(columns, shape.column_values(), 0.0);
}

/// What is not finite makes the whole tensor NaN.
void FactoredUpdate::find_step(TensorId tensor) {
    const auto range = order_.range(tensor);
    cpu_optim::AdafactorSums sums;
    for_each_tile_of(range, [&](std::uint64_t tile, std::uint64_t /*end*/) {
        const auto& measure = moments_.measure(tile, tensor);
        sums.weight_squares += measure.weight_squares;
        sums.update_squares += measure.update_squares;
    });
    const auto& at = rule(tensor);
    steps_[tensor] = std::isfinite(sums.weight_squares) && std::isfinite(sums.update_squares)
                         ? cpu_optim::adafactor_step(at.hyper, at.number,
                                                     static_cast<std::size_t>(range.size()), sums)
                         : std::numeric_limits<float>::quiet_NaN();
}

std::size_t FactoredUpdate::update(cpu_optim::Isa isa, TensorId tensor, const TilePart& part,
                                   const ElementwiseRun& run) const {
    const auto& shape = moments_.layout().of(tensor);
    const auto& coefficients = rule(tensor).coefficients;
    if (shape.is_vector()) {
        auto with = run;
        with.state[0] = moments_.values_of(tensor).data() + part.in_tensor;
        return cpu_optim::apply_variance(isa, coefficients, steps_[tensor], with);
    }
    std::size_t nonfinite = 0;
    for_each_matrix(shape, part.in_tensor, run, [&](std::uint64_t matrix, const MatrixRun& of_it) {
        nonfinite += cpu_optim::apply_factored(isa, coefficients, steps_[tensor], of_it,
                                               factors(tensor, matrix));
    });
    return nonfinite;
}

}  // namespace spillway::offload::detail
