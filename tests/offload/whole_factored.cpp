// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "tests/offload/whole_factored.h"

#include <array>

#include "cpu_optim/adafactor_reference.h"
#include "offload/element_order.h"

namespace spillway::testing {

using namespace cpu_optim;

struct WholeFactored::Step {
    AdafactorCoefficients coefficients;
    std::vector<float> gradients;  ///< scaled
};

namespace {

double square(float value) {
    return static_cast<double>(value) * value;
}

/// Sixteen sums, added up in halves.
double total(std::array<double, 16> lanes) {
    for (std::size_t half = 8; half > 0; half /= 2) {
        for (std::size_t lane = 0; lane < half; ++lane)
            lanes[lane] += lanes[lane + half];
    }
    return lanes[0];
}

}  // namespace

WholeFactored::WholeFactored(const std::vector<std::uint64_t>& shape, std::uint64_t first_in_order)
    : first_in_order_(first_in_order) {
    std::size_t elements = 1;
    for (const auto extent : shape)
        elements *= static_cast<std::size_t>(extent);
    if (shape.size() < 2) {
        columns_ = elements;
        values_.resize(elements);
    } else if (elements != 0) {
        columns_ = static_cast<std::size_t>(shape.back());
        rows_ = static_cast<std::size_t>(shape[shape.size() - 2]);
        matrices_ = elements / rows_ / columns_;
        values_.resize(matrices_ * (rows_ + columns_));
        row_means_.resize(matrices_);
    }
}

std::size_t WholeFactored::column_of(std::size_t element) const {
    return element / (rows_ * columns_) * columns_ + element % columns_;
}

/// Over the tensor's tiles in order: of each, value(i) to lane i % 16, or of a matrix to that of
/// its column.
template <class Value>
double WholeFactored::squares(std::size_t elements, const Value& value) const {
    double sum = 0;
    for (std::size_t i = 0; i < elements;) {
        std::array<double, 16> lanes{};
        do {
            lanes[(matrices_ == 0 ? i : i % columns_) % 16] += square(value(i));
            ++i;
        } while (i < elements && (first_in_order_ + i) % offload::tile_elements != 0);
        sum += total(lanes);
    }
    return sum;
}

void WholeFactored::move_variances(const Step& step) {
    for (std::size_t i = 0; i < values_.size(); ++i)
        values_[i] = moved_variance(step.coefficients, values_[i], step.gradients[i]);
}

void WholeFactored::move_factors(const Step& step) {
    const auto elements = step.gradients.size();
    // A row's squares: those of the tile in which it ends, then of the tiles before, in order.
    std::vector<double> rows(matrices_ * rows_);
    std::vector<std::vector<double>> earlier(rows.size());
    std::vector<double> columns(matrices_ * columns_), of_tile(columns.size());
    std::array<double, 16> lanes{};
    for (std::size_t i = 0; i < elements; ++i) {
        const auto squared = square(step.gradients[i]);
        const auto row = i / columns_;
        lanes[i % columns_ % 16] += squared;
        of_tile[column_of(i)] += squared;
        const bool row_ends = (i + 1) % columns_ == 0;
        const bool tile_ends = (first_in_order_ + i + 1) % offload::tile_elements == 0;
        if (row_ends)
            rows[row] = total(lanes);
        else if (tile_ends)
            earlier[row].push_back(total(lanes));
        if (row_ends || tile_ends)
            lanes = {};
        if (!tile_ends && i + 1 != elements)
            continue;
        for (std::size_t j = 0; j < columns.size(); ++j)
            columns[j] += of_tile[j];
        of_tile.assign(columns.size(), 0.0);
    }
    for (std::size_t row = 0; row < rows.size(); ++row) {
        for (const auto part : earlier[row])
            rows[row] += part;
    }
    for (std::size_t m = 0; m < matrices_; ++m)
        row_means_[m] =
            update_factors(step.coefficients, {rows_, columns_}, rows.data() + m * rows_,
                           columns.data() + m * columns_, values_.data() + m * rows_,
                           values_.data() + matrices_ * rows_ + m * columns_)
                .row_mean;
}

float WholeFactored::variance(std::size_t element) const {
    if (matrices_ == 0)
        return values_[element];
    return values_[element / columns_] / row_means_[element / (rows_ * columns_)] *
           values_[matrices_ * rows_ + column_of(element)];
}

void WholeFactored::update(const AdafactorHyperParameters& hyper, std::uint64_t number,
                           double gradient_scale, std::span<float> masters,
                           std::span<const float> gradients) {
    Step step{make_coefficients(hyper, number, gradient_scale), {}};
    for (const auto gradient : gradients)
        step.gradients.push_back(gradient * step.coefficients.gradient_scale);
    if (matrices_ == 0)
        move_variances(step);
    else
        move_factors(step);
    const auto change = [&](std::size_t i) {
        return adafactor_update(step.coefficients, variance(i), step.gradients[i]);
    };
    const float alpha =
        adafactor_step(hyper, number, masters.size(),
                       {squares(masters.size(), [&](std::size_t i) { return masters[i]; }),
                        squares(masters.size(), change)});
    for (std::size_t i = 0; i < masters.size(); ++i)
        masters[i] = adafactor_weight(step.coefficients, alpha, masters[i], change(i));
}

}  // namespace spillway::testing
