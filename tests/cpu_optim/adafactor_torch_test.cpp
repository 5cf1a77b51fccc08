// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
//
// Adafactor and torch's own over 200 steps of gradients that change sign and span 1e-8 to 1e3. Both
// must stay within the bound that running error analysis gives for the formulas in float, from the
// formulas' values in double; the bound, and with it the distance from torch, is a few roundings.
// A number that is one percent off leaves it.
#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <span>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/cpu_optim/adafactor_tensor.h"
#include "tests/cpu_optim/bounded.h"
#include "tests/cpu_optim/torch_inputs.h"
#include "tests/cpu_optim/torch_transcripts.h"

namespace spillway::cpu_optim {
namespace {

using testing::AdafactorStep;
using testing::BandOrder;
using testing::Bounded;
using testing::Cutting;
using testing::exactly;
using testing::narrowed;

constexpr Cutting whole_bands{1000, BandOrder::forward};

const AdafactorHyperParameters every_argument{.learning_rate = 0.05,
                                              .beta2_decay = -0.6,
                                              .epsilon1 = 1e-4,
                                              .epsilon2 = 0.01,
                                              .clip_threshold = 2,
                                              .weight_decay = 0.1,
                                              .objective = Objective::maximise};

/// `matrices` of one shape, or (with no rows) a vector of `columns` elements.
struct TensorShape {
    std::size_t matrices;
    std::size_t rows;
    std::size_t columns;

    [[nodiscard]] std::size_t elements() const {
        return matrices * std::max<std::size_t>(rows, 1) * columns;
    }
};

/// As torch takes a norm in float: every square and every addition rounds.
Bounded float_norm_squared(const std::vector<Bounded>& values) {
    Bounded sum = exactly(0);
    for (const Bounded& value : values)
        sum = sum + value * value;
    const Bounded norm = testing::root(sum);
    return norm * norm;
}

Bounded root_mean_square(const std::vector<Bounded>& values) {
    const Bounded mean = float_norm_squared(values) / exactly(static_cast<double>(values.size()));
    return testing::root(mean);
}

/// The formulas of torch's documentation in double, with the bounds of a float computation.
class Model {
  public:
    explicit Model(const TensorShape& shape)
        : shape_{shape},
          rows_(shape.matrices * shape.rows, exactly(0)),
          columns_(shape.elements(), exactly(0)) {
        for (std::size_t i = 0; i < shape.elements(); ++i)
            w.push_back(exactly(testing::transcript_weight(i)));
    }

    void step(const AdafactorHyperParameters& hyper, std::uint64_t t) {
        const auto number = static_cast<double>(t);
        const double sign = hyper.objective == Objective::maximise ? -1 : 1;
        std::vector<Bounded> g;
        for (std::size_t i = 0; i < w.size(); ++i)
            g.push_back(exactly(sign * testing::transcript_gradient(t, i)));
        const double share = std::pow(number, hyper.beta2_decay);
        const Bounded rho = narrowed(std::min(hyper.learning_rate, 1 / std::sqrt(number)));
        const Bounded alpha = testing::larger(narrowed(hyper.epsilon2), root_mean_square(w)) * rho;
        const double epsilon1 = hyper.epsilon1.value_or(0x1p-23);

        std::vector<Bounded> u;
        const std::vector<Bounded> v =
            shape_.rows == 0 ? moved_variances(g, share) : moved_factors(g, share, epsilon1);
        for (std::size_t i = 0; i < w.size(); ++i) {
            const Bounded used = testing::larger(v[i], narrowed(epsilon1 * epsilon1));
            u.push_back(exactly(1) / testing::root(used) * g[i]);
        }
        const Bounded excess = root_mean_square(u) / narrowed(hyper.clip_threshold);
        const Bounded change = alpha / testing::larger(exactly(1), excess);
        for (std::size_t i = 0; i < w.size(); ++i) {
            if (hyper.weight_decay != 0)
                w[i] = narrowed(1 - hyper.learning_rate * hyper.weight_decay) * w[i];
            w[i] = w[i] - change * u[i];
        }
    }

    std::vector<Bounded> w;

  private:
    std::vector<Bounded> moved_variances(const std::vector<Bounded>& g, double share) {
        for (std::size_t i = 0; i < g.size(); ++i)
            columns_[i] = testing::mixed(columns_[i], g[i] * g[i], share);
        return columns_;
    }
    std::vector<Bounded> moved_factors(const std::vector<Bounded>& g, double share,
                                       double epsilon1) {
        std::vector<Bounded> v;
        for (std::size_t matrix = 0; matrix < shape_.matrices; ++matrix) {
            const std::span of_matrix(g.data() + matrix * shape_.rows * shape_.columns,
                                      shape_.rows * shape_.columns);
            move_factors_of(matrix, of_matrix, share);
            Bounded sum = exactly(0);
            for (std::size_t i = 0; i < shape_.rows; ++i)
                sum = sum + row(matrix, i);
            const Bounded mean = testing::larger(sum / exactly(static_cast<double>(shape_.rows)),
                                                 narrowed(epsilon1));
            for (std::size_t i = 0; i < shape_.rows; ++i)
                for (std::size_t j = 0; j < shape_.columns; ++j)
                    v.push_back(row(matrix, i) * column(matrix, j) / mean);
        }
        return v;
    }
    void move_factors_of(std::size_t matrix, std::span<const Bounded> g, double share) {
        const auto mean_of = [](const std::vector<Bounded>& values) {
            return float_norm_squared(values) / exactly(static_cast<double>(values.size()));
        };
        for (std::size_t i = 0; i < shape_.rows; ++i) {
            const auto of_row = g.subspan(i * shape_.columns, shape_.columns);
            Bounded& factor = row(matrix, i);
            factor = testing::mixed(factor, mean_of({of_row.begin(), of_row.end()}), share);
        }
        for (std::size_t j = 0; j < shape_.columns; ++j) {
            std::vector<Bounded> of_column;
            for (std::size_t i = 0; i < shape_.rows; ++i)
                of_column.push_back(g[i * shape_.columns + j]);
            Bounded& factor = column(matrix, j);
            factor = testing::mixed(factor, mean_of(of_column), share);
        }
    }
    Bounded& row(std::size_t matrix, std::size_t i) { return rows_[matrix * shape_.rows + i]; }
    Bounded& column(std::size_t matrix, std::size_t j) {
        return columns_[matrix * shape_.columns + j];
    }

    TensorShape shape_;
    std::vector<Bounded> rows_, columns_;  ///< of a vector, columns_ are its variances
};

/// A tensor as the kernels keep it.
class Tensor {
  public:
    explicit Tensor(const TensorShape& shape)
        : weights(shape.elements()),
          shape_{shape},
          gradient_(shape.elements()),
          rows_(shape.matrices * shape.rows),
          columns_(shape.elements()) {
        for (std::size_t i = 0; i < weights.size(); ++i)
            weights[i] = testing::transcript_weight(i);
    }

    void step(Isa isa, const AdafactorHyperParameters& hyper, std::uint64_t t) {
        for (std::size_t i = 0; i < weights.size(); ++i)
            gradient_[i] = testing::transcript_gradient(t, i);
        const AdafactorStep at{.hyper = hyper, .number = t};
        const auto run_of = [&](std::size_t first, std::size_t n) { return run(first, n); };
        if (shape_.rows == 0)
            REQUIRE(testing::step_vector(isa, at, weights.size(), run_of, whole_bands) == 0);
        else
            step_batch(isa, at);
    }

    std::vector<float> weights;

  private:
    [[nodiscard]] ElementwiseRun run(std::size_t first, std::size_t elements) {
        ElementwiseRun run{.elements = elements, .master = weights.data() + first};
        run.state[0] = columns_.data() + first;
        run.gradient = gradient_.data() + first;
        return run;
    }
    void step_batch(Isa isa, const AdafactorStep& at) {
        const auto c = make_coefficients(at.hyper, at.number, 1.0);
        const MatrixShape shape{shape_.rows, shape_.columns};
        const std::size_t elements = shape.rows * shape.columns;
        std::vector<Factors> factors;
        AdafactorSums sums;
        for (std::size_t n = 0; n < shape_.matrices; ++n) {
            const MatrixRun matrix{shape.columns, 0, run(n * elements, elements)};
            std::vector<double> row_squares(shape.rows), column_squares(shape.columns);
            BandSums band{row_squares.data(), column_squares.data(), {}, {}};
            sum_squares(isa, c, matrix, band);
            factors.push_back(update_factors(c, shape, row_squares.data(), column_squares.data(),
                                             rows_.data() + n * shape.rows,
                                             columns_.data() + n * shape.columns));
            LaneSum updates;
            sum_updates(isa, c, matrix, factors.back(), updates);
            sums.weight_squares += band.weights.total();
            sums.update_squares += updates.total();
        }
        const float step = adafactor_step(at.hyper, at.number, weights.size(), sums);
        for (std::size_t n = 0; n < shape_.matrices; ++n)
            REQUIRE(apply_factored(isa, c, step, {shape.columns, 0, run(n * elements, elements)},
                                   factors[n]) == 0);
    }

    TensorShape shape_;
    std::vector<float> gradient_, rows_, columns_;
};

/// The worst element of `found`, as a multiple of the bound.
double worst(const std::vector<float>& found, const Model& model) {
    double multiple = 0;
    for (std::size_t i = 0; i < found.size(); ++i)
        multiple = std::max(multiple, testing::distance(found[i], model.w[i]));
    return multiple;
}

std::vector<float> floats(std::span<const std::uint32_t> bits) {
    std::vector<float> values;
    for (const std::uint32_t word : bits)
        values.push_back(std::bit_cast<float>(word));
    return values;
}

struct Case {
    const char* name;
    TensorShape shape;
    AdafactorHyperParameters hyper;
    std::span<const std::uint32_t> torch;
};

const std::vector<Case>& every_case() {
    namespace transcript = testing::transcript;
    constexpr TensorShape matrix{1, 5, 7}, vector{1, 0, 19}, batch{2, 3, 4};
    static const std::vector<Case> cases{
        {"matrix", matrix, {}, transcript::adafactor_matrix_0},
        {"matrix, every argument", matrix, every_argument, transcript::adafactor_matrix_1},
        {"vector", vector, {}, transcript::adafactor_vector_0},
        {"vector, every argument", vector, every_argument, transcript::adafactor_vector_1},
        {"batch", batch, {}, transcript::adafactor_batch_0},
        {"batch, every argument", batch, every_argument, transcript::adafactor_batch_1}};
    return cases;
}

std::vector<float> after_200_steps(Isa isa, const Case& at, const AdafactorHyperParameters& hyper) {
    Tensor tensor(at.shape);
    for (std::uint64_t t = 1; t <= testing::transcript_steps; ++t)
        tensor.step(isa, hyper, t);
    return tensor.weights;
}

Model model_of(const Case& at) {
    Model model(at.shape);
    for (std::uint64_t t = 1; t <= testing::transcript_steps; ++t)
        model.step(at.hyper, t);
    return model;
}

}  // namespace

TEMPLATE_TEST_CASE_SIG("Adafactor and torch's end 200 steps within the bound of the roundings", "",
                       ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    for (const Case& at : every_case()) {
        CAPTURE(at.name);
        const Model model = model_of(at);
        const auto found = after_200_steps(isa, at, at.hyper);
        const auto torch = floats(at.torch);
        REQUIRE(found.size() == torch.size());
        CHECK(worst(found, model) <= 1);
        CHECK(worst(torch, model) <= 1);
        for (std::size_t i = 0; i < found.size(); ++i) {
            CHECK(model.w[i].error <= 1e-4);
            CHECK(found[i] == Approx(torch[i]).epsilon(1e-6).margin(1e-6));
        }
    }
}

TEST_CASE("a hyper-parameter of Adafactor that is one percent off leaves the bound") {
    using Change = std::function<void(AdafactorHyperParameters&)>;
    const std::vector<Change> changes{
        [](auto& hyper) { hyper.learning_rate *= 1.01; },
        [](auto& hyper) { hyper.beta2_decay *= 1.01; },
        [](auto& hyper) { hyper.clip_threshold *= 1.01; },
        [](auto& hyper) { hyper.weight_decay *= 1.01; },
        [](auto& hyper) { hyper.objective = Objective::minimise; },
        [](auto& hyper) { hyper.weight_decay = 0; },
    };
    for (const Case& at : every_case()) {
        if (at.hyper.weight_decay == 0)
            continue;
        const Model model = model_of(at);
        for (std::size_t n = 0; n < changes.size(); ++n) {
            const bool is_clip_threshold = n == 2;
            if (is_clip_threshold && at.shape.rows == 0)
                continue;  // the updates of this vector never come to it
            CAPTURE(at.name, n);
            AdafactorHyperParameters wrong = at.hyper;
            changes[n](wrong);
            CHECK(worst(after_200_steps(Isa::scalar, at, wrong), model) > 1);
        }
    }
}

}  // namespace spillway::cpu_optim
