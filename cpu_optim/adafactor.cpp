// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/adafactor.h"

#include <algorithm>

#include "cpu_optim/adafactor_reference.h"
#include "cpu_optim/detail/gradient_element.h"
#include "cpu_optim/detail/kernel_table.h"
#include "cpu_optim/detail/lane_sum.h"
#include "cpu_optim/detail/require_planes.h"
#include "cpu_optim/detail/run_elements.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_optim/adafactor.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu_optim/detail/adafactor_blocks-inl.h"

#if HWY_ONCE
namespace spillway::cpu_optim {
namespace {

using detail::AdafactorPiece;
using detail::Progress;
using detail::RunPointers;

constexpr detail::KernelTable<void(float, const RunPointers&, double*, double*, double*)>
    square_kernels = SPILLWAY_KERNEL_TABLE(square_blocks);
constexpr detail::KernelTable<void(const AdafactorCoefficients&, const AdafactorPiece&, double*)>
    update_kernels = SPILLWAY_KERNEL_TABLE(update_blocks);
constexpr detail::KernelTable<void(const AdafactorCoefficients&, const RunPointers&, double*,
                                   double*)>
    variance_kernels = SPILLWAY_KERNEL_TABLE(variance_blocks);
constexpr detail::KernelTable<Progress(const AdafactorCoefficients&, float, const AdafactorPiece&)>
    apply_kernels = SPILLWAY_KERNEL_TABLE(apply_vectors);

/// The elements of one row in a run.
struct RowPiece {
    std::size_t row;
    std::size_t column;
    ElementwiseRun run;
};

/// body(piece) row by row.
template <class Body>
void for_each_row(const MatrixRun& run, const Body& body) {
    for (std::size_t from = 0; from < run.run.elements;) {
        const std::size_t at = run.first + from;
        const std::size_t column = at % run.columns;
        const std::size_t elements = std::min(run.columns - column, run.run.elements - from);
        body(RowPiece{at / run.columns, column, detail::part_of(run.run, from, elements)});
        from += elements;
    }
}

/// Elements that lie before, in and behind the whole blocks of sum_lanes, which start at lane 0.
struct Blocks {
    std::size_t head;
    std::size_t body;
    std::size_t end;
};

Blocks blocks_of(std::size_t lane, std::size_t elements) {
    constexpr std::size_t lanes = detail::sum_lanes;
    const std::size_t head = std::min((lanes - lane % lanes) % lanes, elements);
    return {head, (elements - head) / lanes * lanes, elements};
}

/// by_block(elements from `head` on) and by_element(i) of the others; all by element on scalar.
template <class Kernel, class ByBlock, class ByElement>
void in_blocks(Kernel* kernel, std::size_t lane, std::size_t elements, const ByBlock& by_block,
               const ByElement& by_element) {
    const Blocks blocks = blocks_of(lane, elements);
    const std::size_t body = kernel != nullptr ? blocks.body : 0;
    for (std::size_t i = 0; i < blocks.head; ++i)
        by_element(i);
    if (body != 0)
        by_block(blocks.head, body);
    for (std::size_t i = blocks.head + body; i < elements; ++i)
        by_element(i);
}

void add_square(LaneSum& sum, std::size_t lane, float value) {
    sum.lanes[lane % detail::sum_lanes] += static_cast<double>(value) * value;
}

float scaled_gradient(const AdafactorCoefficients& c, const ElementwiseRun& run, std::size_t i) {
    return detail::gradient_element(run.gradient, run.gradient_type, i) * c.gradient_scale;
}

void sum_row_squares(Isa isa, const AdafactorCoefficients& c, const RowPiece& piece,
                     BandSums& sums) {
    const auto kernel = square_kernels.at(isa);
    const ElementwiseRun& run = piece.run;
    double* const column_squares = sums.column_squares + (piece.column - sums.first_column);
    in_blocks(
        kernel, piece.column, run.elements,
        [&](std::size_t from, std::size_t elements) {
            kernel(c.gradient_scale, detail::pointers_of(detail::part_of(run, from, elements)),
                   sums.open_row.lanes.data(), column_squares + from, sums.weights.lanes.data());
        },
        [&](std::size_t i) {
            const float g = scaled_gradient(c, run, i);
            const std::size_t column = piece.column + i;
            add_square(sums.open_row, column, g);
            column_squares[i] += static_cast<double>(g) * g;
            add_square(sums.weights, column, detail::element_of(run, 0, i).master);
        });
}

float relative_row(const Factors& factors, std::size_t row) {
    return factors.rows[row] / factors.row_mean;
}

void sum_row_updates(Isa isa, const AdafactorCoefficients& c, const RowPiece& piece,
                     const Factors& factors, LaneSum& updates) {
    const auto kernel = update_kernels.at(isa);
    const ElementwiseRun& run = piece.run;
    const float row = relative_row(factors, piece.row);
    const float* const columns = factors.columns + piece.column;
    in_blocks(
        kernel, piece.column, run.elements,
        [&](std::size_t from, std::size_t elements) {
            kernel(c,
                   {detail::pointers_of(detail::part_of(run, from, elements)), row, columns + from},
                   updates.lanes.data());
        },
        [&](std::size_t i) {
            const float g = scaled_gradient(c, run, i);
            add_square(updates, piece.column + i, adafactor_update(c, row * columns[i], g));
        });
}

/// Element i has variance `relative_row` * variances[i].
std::size_t apply_elements(Isa isa, const AdafactorCoefficients& c, float step, float relative_row,
                           const float* variances, const ElementwiseRun& run) {
    Progress progress{.elements = 0, .nonfinite = 0};
    if (const auto kernel = apply_kernels.at(isa))
        progress = kernel(c, step, {detail::pointers_of(run), relative_row, variances});
    for (std::size_t i = progress.elements; i < run.elements; ++i) {
        const float u =
            adafactor_update(c, relative_row * variances[i], scaled_gradient(c, run, i));
        const float weight = detail::element_of(run, 0, i).master;
        progress.nonfinite += detail::store_master(run, adafactor_weight(c, step, weight, u), i);
    }
    return progress.nonfinite;
}

}  // namespace

void sum_squares(Isa isa, const AdafactorCoefficients& coefficients, const MatrixRun& run,
                 BandSums& sums) {
    detail::require_supported(isa);
    if (run.run.elements == 0)
        return;
    detail::require_masters("sum_squares", run.run.master, run.run.weight, run.run.residue);
    detail::require_gradient("sum_squares", run.run.gradient);
    for_each_row(run, [&](const RowPiece& piece) {
        sum_row_squares(isa, coefficients, piece, sums);
        if (piece.column + piece.run.elements < run.columns)
            return;
        sums.row_squares[piece.row] = sums.open_row.total();
        sums.open_row = {};
    });
}

void sum_updates(Isa isa, const AdafactorCoefficients& coefficients, const MatrixRun& run,
                 const Factors& factors, LaneSum& updates) {
    detail::require_supported(isa);
    if (run.run.elements == 0)
        return;
    detail::require_gradient("sum_updates", run.run.gradient);
    for_each_row(run, [&](const RowPiece& piece) {
        sum_row_updates(isa, coefficients, piece, factors, updates);
    });
}

std::size_t apply_factored(Isa isa, const AdafactorCoefficients& coefficients, float step,
                           const MatrixRun& run, const Factors& factors) {
    detail::require_supported(isa);
    if (run.run.elements == 0)
        return 0;
    detail::require_masters("apply_factored", run.run.master, run.run.weight, run.run.residue);
    detail::require_gradient("apply_factored", run.run.gradient);
    std::size_t nonfinite = 0;
    for_each_row(run, [&](const RowPiece& piece) {
        nonfinite += apply_elements(isa, coefficients, step, relative_row(factors, piece.row),
                                    factors.columns + piece.column, piece.run);
    });
    return nonfinite;
}

void prepare_variance(Isa isa, const AdafactorCoefficients& c, std::size_t first,
                      const ElementwiseRun& run, VectorSums& sums) {
    const auto kernel = variance_kernels.at(isa);
    if (run.elements == 0)
        return;
    detail::require_masters("prepare_variance", run.master, run.weight, run.residue);
    detail::require_state("prepare_variance", run, 1);
    detail::require_gradient("prepare_variance", run.gradient);
    in_blocks(
        kernel, first, run.elements,
        [&](std::size_t from, std::size_t elements) {
            kernel(c, detail::pointers_of(detail::part_of(run, from, elements)),
                   sums.weights.lanes.data(), sums.updates.lanes.data());
        },
        [&](std::size_t i) {
            const float g = scaled_gradient(c, run, i);
            float& variance = run.state[0][i];
            variance = moved_variance(c, variance, g);
            add_square(sums.weights, first + i, detail::element_of(run, 0, i).master);
            add_square(sums.updates, first + i, adafactor_update(c, variance, g));
        });
}

std::size_t apply_variance(Isa isa, const AdafactorCoefficients& coefficients, float step,
                           const ElementwiseRun& run) {
    detail::require_supported(isa);
    if (run.elements == 0)
        return 0;
    detail::require_masters("apply_variance", run.master, run.weight, run.residue);
    detail::require_state("apply_variance", run, 1);
    detail::require_gradient("apply_variance", run.gradient);
    return apply_elements(isa, coefficients, step, 1, run.state[0], run);
}

}  // namespace spillway::cpu_optim
#endif  // HWY_ONCE
