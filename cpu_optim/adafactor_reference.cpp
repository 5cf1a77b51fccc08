// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/adafactor_reference.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu_optim/detail/one_nan.h"

namespace spillway::cpu_optim {
namespace {

using detail::with_one_nan;

double square(float value) {
    return static_cast<double>(value) * value;
}

/// Sums the squares of value(i) for i below `count`, lane(i) saying which lane takes them, band by
/// band.
template <class Value, class Lane>
double sum_in_bands(std::size_t count, std::size_t band, const Lane& lane, const Value& value) {
    double sum = 0;
    for (std::size_t first = 0; first < count; first += band) {
        LaneSum lanes;
        for (std::size_t i = first; i < std::min(first + band, count); ++i)
            lanes.lanes[lane(i) % lanes.lanes.size()] += square(value(i));
        sum += lanes.total();
    }
    return sum;
}

/// Algorithm 4, lines 4 and 5 before the means are moved: row sums and column sums of G^2.
struct Squares {
    std::vector<double> rows, columns;
};

Squares squares_of(const MatrixShape& shape, const std::vector<float>& g) {
    const auto [rows, columns] = shape;
    Squares sums{std::vector<double>(rows), std::vector<double>(columns)};
    std::vector<double> band(columns);
    for (std::size_t i = 0; i < rows; ++i) {
        LaneSum row;
        for (std::size_t j = 0; j < columns; ++j) {
            row.lanes[j % row.lanes.size()] += square(g[i * columns + j]);
            band[j] += square(g[i * columns + j]);
        }
        sums.rows[i] = row.total();
        if ((i + 1) % adafactor_band_rows != 0 && i + 1 != rows)
            continue;
        for (std::size_t j = 0; j < columns; ++j)
            sums.columns[j] += band[j];
        std::ranges::fill(band, 0);
    }
    return sums;
}

std::vector<float> scaled(std::span<const float> gradient, float scale) {
    std::vector<float> g(gradient.begin(), gradient.end());
    for (float& value : g)
        value *= scale;
    return g;
}

}  // namespace

float moved_variance(const AdafactorCoefficients& c, float variance, float gradient) {
    const auto share = static_cast<float>(c.one_minus_beta2);
    return with_one_nan(std::fma(share, gradient * gradient - variance, variance));
}

float adafactor_update(const AdafactorCoefficients& c, float variance, float gradient) {
    const float used = variance < c.least_variance ? c.least_variance : variance;
    return gradient / std::sqrt(used);
}

float adafactor_weight(const AdafactorCoefficients& c, float step, float weight, float update) {
    const float decayed = c.decays == Term::on ? std::fma(-c.decay, weight, weight) : weight;
    return with_one_nan(std::fma(-step, update, decayed));
}

void adafactor_by_definition(const AdafactorHyperParameters& hyper, std::uint64_t step,
                             double gradient_scale, const AdafactorMatrix& tensor) {
    const auto c = make_coefficients(hyper, step, gradient_scale);
    const std::vector<float> g = scaled(tensor.gradient, c.gradient_scale);
    const std::size_t columns = tensor.shape.columns;
    const std::size_t band = adafactor_band_rows * columns;
    const auto lane = [&](std::size_t i) { return i % columns; };

    // Lines 4 and 5: R_t and C_t, exponential means of the row and column means of G_t^2.
    const Squares squares = squares_of(tensor.shape, g);
    const Factors factors =
        update_factors(c, tensor.shape, squares.rows.data(), squares.columns.data(),
                       tensor.rows.data(), tensor.columns.data());
    // Line 6: V_t = R_t C_t / mean(R_t). Line 7: U_t = G_t / sqrt(V_t).
    const auto u = [&](std::size_t i) {
        const float relative_row = factors.rows[i / columns] / factors.row_mean;
        return adafactor_update(c, relative_row * factors.columns[i % columns], g[i]);
    };
    // Line 3: alpha_t = max(epsilon2, RMS(X_{t-1})) rho_t. Line 8: U_t / max(1, RMS(U_t) / d).
    const AdafactorSums sums{
        sum_in_bands(g.size(), band, lane, [&](std::size_t i) { return tensor.weights[i]; }),
        sum_in_bands(g.size(), band, lane, u)};
    const float alpha = adafactor_step(hyper, step, g.size(), sums);
    // Line 9: X_t = X_{t-1} - alpha_t U_t.
    for (std::size_t i = 0; i < g.size(); ++i)
        tensor.weights[i] = adafactor_weight(c, alpha, tensor.weights[i], u(i));
}

void adafactor_by_definition(const AdafactorHyperParameters& hyper, std::uint64_t step,
                             double gradient_scale, const AdafactorVector& tensor) {
    const auto c = make_coefficients(hyper, step, gradient_scale);
    const std::vector<float> g = scaled(tensor.gradient, c.gradient_scale);
    const auto lane = [](std::size_t i) { return i; };

    // Line 4: V_t. Line 5: U_t = G_t / sqrt(V_t).
    for (std::size_t i = 0; i < g.size(); ++i)
        tensor.variances[i] = moved_variance(c, tensor.variances[i], g[i]);
    const auto u = [&](std::size_t i) { return adafactor_update(c, tensor.variances[i], g[i]); };
    // Line 3: alpha_t. Line 6: U_t / max(1, RMS(U_t) / d). Line 7: X_t.
    const AdafactorSums sums{sum_in_bands(g.size(), adafactor_band_elements, lane,
                                          [&](std::size_t i) { return tensor.weights[i]; }),
                             sum_in_bands(g.size(), adafactor_band_elements, lane, u)};
    const float alpha = adafactor_step(hyper, step, g.size(), sums);
    for (std::size_t i = 0; i < g.size(); ++i)
        tensor.weights[i] = adafactor_weight(c, alpha, tensor.weights[i], u(i));
}

}  // namespace spillway::cpu_optim
