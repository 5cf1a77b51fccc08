// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include <fmt/format.h>

#include "cpu_optim/adafactor.h"
#include "cpu_optim/detail/exponential.h"
#include "cpu_optim/detail/hyper_checker.h"
#include "cpu_optim/detail/lane_sum.h"

namespace spillway::cpu_optim {
namespace {

using detail::HyperChecker;
using detail::with_one_nan;

const HyperChecker checker("Adafactor");

double epsilon1_of(const AdafactorHyperParameters& hyper) {
    return hyper.epsilon1.value_or(adafactor_default_epsilon1);
}

/// A factor moved to the mean of `squares` over `count` elements.
float moved_factor(double share, float factor, double squares, std::size_t count) {
    const double mean = squares / static_cast<double>(count);
    return with_one_nan(static_cast<float>(factor + share * (mean - factor)));
}

}  // namespace

OptimizerNeeds needs(const AdafactorHyperParameters& /*hyper*/, SecondMoment moment) noexcept {
    if (moment == SecondMoment::whole)
        return {.state_planes = 1, .passes = 2, .gradient_passes = 2, .reach = Reach::tensor};
    return {.state_planes = 0,
            .passes = 3,
            .gradient_passes = 3,
            .reach = Reach::tensor,
            .row_vectors = 1,
            .column_vectors = 1};
}

std::string_view optimizer_name(const AdafactorHyperParameters& /*hyper*/) noexcept {
    return "Adafactor";
}

void check(const AdafactorHyperParameters& hyper, StateFormat format) {
    check(hyper);
    if (!is_exact(format))
        throw std::invalid_argument(fmt::format(
            "Adafactor: state in {} is asked for; it keeps few values, for rows and columns, and "
            "those in fp32: take state fp32",
            state_format_name(format)));
}

void check(const AdafactorHyperParameters& hyper) {
    checker.not_negative("learning_rate", hyper.learning_rate);
    if (!std::isfinite(hyper.beta2_decay) || hyper.beta2_decay > 0)
        checker.refuse("beta2_decay", hyper.beta2_decay, "must be a finite number, 0 or less");
    checker.not_negative("epsilon1", epsilon1_of(hyper));
    checker.not_negative("epsilon2", hyper.epsilon2);
    checker.not_negative("weight_decay", hyper.weight_decay);
    if (!(hyper.clip_threshold >= 1))
        checker.refuse("clip_threshold", hyper.clip_threshold, "must be 1 or more");
}

AdafactorCoefficients make_coefficients(const AdafactorHyperParameters& hyper, std::uint64_t step,
                                        double gradient_scale) {
    check(hyper);
    const auto at = detail::checked_step(checker, step, gradient_scale);
    const double epsilon1 = epsilon1_of(hyper);
    return {
        .gradient_scale = detail::signed_scale(checker, hyper.objective, at.gradient_scale),
        .one_minus_beta2 = detail::step_power(step, hyper.beta2_decay),
        .least_variance = checker.narrow("epsilon1 squared", epsilon1 * epsilon1),
        .least_row_mean = checker.narrow("epsilon1", epsilon1),
        .decays = hyper.weight_decay != 0 ? Term::on : Term::off,
        .decay = checker.narrow("learning_rate * weight_decay",
                                hyper.learning_rate * hyper.weight_decay),
    };
}

double LaneSum::total() const {
    return detail::add_up_lanes(lanes);
}

Factors update_factors(const AdafactorCoefficients& c, const MatrixShape& shape,
                       const double* row_squares, const double* column_squares, float* rows,
                       float* columns) {
    if (shape.rows == 0 || shape.columns == 0)
        return {.rows = rows, .columns = columns, .row_mean = c.least_row_mean};
    for (std::size_t j = 0; j < shape.columns; ++j)
        columns[j] = moved_factor(c.one_minus_beta2, columns[j], column_squares[j], shape.rows);
    double sum = 0;
    for (std::size_t i = 0; i < shape.rows; ++i) {
        rows[i] = moved_factor(c.one_minus_beta2, rows[i], row_squares[i], shape.columns);
        sum += rows[i];
    }
    const auto mean = static_cast<float>(sum / static_cast<double>(shape.rows));
    return {.rows = rows,
            .columns = columns,
            .row_mean = mean < c.least_row_mean ? c.least_row_mean : mean};
}

float adafactor_step(const AdafactorHyperParameters& hyper, std::uint64_t step,
                     std::size_t elements, const AdafactorSums& sums) {
    checker.finite("the weights' sum of squares", sums.weight_squares);
    checker.finite("the updates' sum of squares", sums.update_squares);
    const auto root_mean = [elements](double squares) {
        return elements == 0 ? 0 : std::sqrt(squares / static_cast<double>(elements));
    };
    const double rho = std::min(hyper.learning_rate, 1 / std::sqrt(static_cast<double>(step)));
    const double alpha = std::max(hyper.epsilon2, root_mean(sums.weight_squares)) * rho;
    const double excess = root_mean(sums.update_squares) / hyper.clip_threshold;
    return checker.narrow("the step", alpha / std::max(1.0, excess));
}

}  // namespace spillway::cpu_optim
