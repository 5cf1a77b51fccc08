// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <algorithm>
#include <vector>

#include "cpu_optim/adafactor.h"

namespace spillway::cpu_optim::testing {

/// How a tensor is handed to the kernels.
enum class BandOrder { forward, backward };
struct Cutting {
    std::size_t run_elements;  ///< of the runs that a band is cut in
    BandOrder order;           ///< in which bands are worked on; their sums are added forward
};

struct AdafactorStep {
    AdafactorHyperParameters hyper;
    std::uint64_t number = 1;
    double gradient_scale = 1;
};

/// body(band, first element, elements) of every band of `band` elements.
template <class Body>
void for_each_band(std::size_t elements, std::size_t band, BandOrder order, const Body& body) {
    const std::size_t bands = band == 0 ? 0 : (elements + band - 1) / band;
    for (std::size_t n = 0; n < bands; ++n) {
        const std::size_t index = order == BandOrder::forward ? n : bands - 1 - n;
        body(index, index * band, std::min(band, elements - index * band));
    }
}

/// One step of a matrix by the kernels; run_of(first, elements) is a run of its planes. Returns the
/// masters counted.
template <class RunOf>
std::size_t step_matrix(Isa isa, const AdafactorStep& at, const MatrixShape& shape,
                        const RunOf& run_of, float* rows, float* columns, const Cutting& cutting) {
    const auto c = make_coefficients(at.hyper, at.number, at.gradient_scale);
    const std::size_t elements = shape.rows * shape.columns;
    const std::size_t band = adafactor_band_rows * shape.columns;
    const auto in_runs = [&](std::size_t first, std::size_t count, const auto& body) {
        for (std::size_t from = 0; from < count; from += cutting.run_elements)
            body(MatrixRun{shape.columns, first + from,
                           run_of(first + from, std::min(cutting.run_elements, count - from))});
    };
    std::vector<double> row_squares(shape.rows), column_squares(shape.columns);
    std::vector<std::vector<double>> band_columns(shape.rows / adafactor_band_rows + 1);
    std::vector<double> weight_sums(band_columns.size()), update_sums(band_columns.size());
    for_each_band(elements, band, cutting.order, [&](auto index, auto first, auto count) {
        band_columns[index].resize(shape.columns);
        BandSums sums{.row_squares = row_squares.data(),
                      .column_squares = band_columns[index].data(),
                      .open_row = {},
                      .weights = {}};
        in_runs(first, count, [&](const MatrixRun& run) { sum_squares(isa, c, run, sums); });
        weight_sums[index] = sums.weights.total();
    });
    for (const auto& of_band : band_columns)
        for (std::size_t j = 0; j < of_band.size(); ++j)
            column_squares[j] += of_band[j];
    const Factors factors =
        update_factors(c, shape, row_squares.data(), column_squares.data(), rows, columns);
    for_each_band(elements, band, cutting.order, [&](auto index, auto first, auto count) {
        LaneSum updates;
        in_runs(first, count,
                [&](const MatrixRun& run) { sum_updates(isa, c, run, factors, updates); });
        update_sums[index] = updates.total();
    });
    AdafactorSums sums;
    for (std::size_t n = 0; n < weight_sums.size(); ++n) {
        sums.weight_squares += weight_sums[n];
        sums.update_squares += update_sums[n];
    }
    const float step = adafactor_step(at.hyper, at.number, elements, sums);
    std::size_t counted = 0;
    for_each_band(elements, band, cutting.order, [&](auto, auto first, auto count) {
        in_runs(first, count, [&](const MatrixRun& run) {
            counted += apply_factored(isa, c, step, run, factors);
        });
    });
    return counted;
}

/// The same of a vector, whose runs have the variances as state[0].
template <class RunOf>
std::size_t step_vector(Isa isa, const AdafactorStep& at, std::size_t elements, const RunOf& run_of,
                        const Cutting& cutting) {
    const auto c = make_coefficients(at.hyper, at.number, at.gradient_scale);
    std::vector<AdafactorSums> bands(elements / adafactor_band_elements + 1);
    const auto in_bands = [&](const auto& body) {
        for_each_band(elements, adafactor_band_elements, cutting.order, body);
    };
    in_bands([&](auto index, auto first, auto count) {
        VectorSums sums;
        for (std::size_t from = 0; from < count; from += cutting.run_elements)
            prepare_variance(isa, c, from,
                             run_of(first + from, std::min(cutting.run_elements, count - from)),
                             sums);
        bands[index] = {sums.weights.total(), sums.updates.total()};
    });
    AdafactorSums sums;
    for (const AdafactorSums& band : bands) {
        sums.weight_squares += band.weight_squares;
        sums.update_squares += band.update_squares;
    }
    const float step = adafactor_step(at.hyper, at.number, elements, sums);
    std::size_t counted = 0;
    in_bands([&](auto, auto first, auto count) {
        for (std::size_t from = 0; from < count; from += cutting.run_elements)
            counted += apply_variance(
                isa, c, step, run_of(first + from, std::min(cutting.run_elements, count - from)));
    });
    return counted;
}

}  // namespace spillway::cpu_optim::testing
