// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
//
// LAMB and LARS against their papers' formulas in double, norms and trust ratio included, within
// the bounds of the roundings; a number that is one percent off leaves them.
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include <catch2/catch.hpp>

#include "cpu_optim/layerwise.h"
#include "tests/cpu_optim/bounded.h"
#include "tests/cpu_optim/sample_values.h"

namespace spillway::cpu_optim {
namespace {

using testing::Bounded;
using testing::exactly;
using testing::narrowed;

constexpr std::size_t elements = 53;
constexpr std::uint64_t steps = 200;

/// A tensor as the kernels keep it.
struct Tensor {
    std::vector<float> master, first, second, gradient;

    Tensor() : master(elements), first(elements), second(elements), gradient(elements) {
        for (std::size_t i = 0; i < elements; ++i)
            master[i] = testing::sample_magnitude(81, i, 1e-3, 1.0);
    }
    /// Of changing sign, some elements always small, some always large, some mixed.
    void set_gradient(std::uint64_t step) {
        for (std::size_t i = 0; i < elements; ++i) {
            const std::uint64_t n = i * 1000 + step;
            const double least = i % 3 == 1 ? 1.0 : 1e-8;
            gradient[i] = testing::sample_magnitude(82, n, least, i % 3 == 0 ? 1e-5 : 1e3);
        }
    }
    [[nodiscard]] ElementwiseRun run() {
        ElementwiseRun run{.elements = elements, .master = master.data()};
        run.state = {first.data(), second.data(), nullptr};
        run.gradient = gradient.data();
        return run;
    }
};

using Update = std::function<void(Tensor&, const LayerwiseHyperParameters&, std::uint64_t)>;

Update kernels_on(Isa isa) {
    return [isa](Tensor& tensor, const LayerwiseHyperParameters& hyper, std::uint64_t step) {
        const auto coefficients = make_coefficients(hyper, step, 1.0);
        const auto sums = measure_run(isa, coefficients, tensor.run());
        REQUIRE(update_run(isa, with_step(coefficients, layer_step(hyper, sums)), tensor.run()) ==
                0);
    };
}

/// Error of the norm: that of the vector of errors, at most.
Bounded norm(const std::vector<Bounded>& values) {
    double squares = 0;
    double error_squares = 0;
    for (const Bounded& value : values) {
        squares += value.value * value.value;
        error_squares += value.error * value.error;
    }
    return {std::sqrt(squares), std::sqrt(error_squares)};
}

Bounded bias_correction(double beta, std::uint64_t step) {
    return narrowed(1 - std::pow(beta, static_cast<double>(step)));
}

/// One step of a paper from a tensor's present state.
class Model {
  public:
    explicit Model(const Tensor& tensor) {
        for (std::size_t i = 0; i < elements; ++i) {
            w.push_back(exactly(tensor.master[i]));
            first.push_back(exactly(tensor.first[i]));
            second.push_back(exactly(tensor.second[i]));
            gradient.push_back(exactly(tensor.gradient[i]));
        }
    }

    void step(const LambHyperParameters& hyper, std::uint64_t t) {
        std::vector<Bounded> u;
        for (std::size_t i = 0; i < elements; ++i) {
            const Bounded g = gradient[i];
            first[i] = testing::mixed(first[i], g, 1 - hyper.beta1);
            second[i] = narrowed(hyper.beta2) * second[i] + narrowed(1 - hyper.beta2) * g * g;
            const Bounded m_hat = first[i] / bias_correction(hyper.beta1, t);
            const Bounded v_hat = second[i] / bias_correction(hyper.beta2, t);
            const Bounded r = m_hat / (testing::root(v_hat) + narrowed(hyper.epsilon));
            u.push_back(r + narrowed(hyper.weight_decay) * w[i]);
        }
        const Bounded rate = narrowed(hyper.learning_rate) * norm(w) / norm(u);
        for (std::size_t i = 0; i < elements; ++i)
            w[i] = w[i] - rate * u[i];
    }

    void step(const LarsHyperParameters& hyper, std::uint64_t /*t*/) {
        const Bounded decay = narrowed(hyper.weight_decay);
        const Bounded ratio =
            narrowed(hyper.trust_coefficient) * norm(w) / (norm(gradient) + decay * norm(w));
        for (std::size_t i = 0; i < elements; ++i) {
            const Bounded direction = gradient[i] + decay * w[i];
            first[i] = narrowed(hyper.momentum) * first[i] +
                       narrowed(hyper.learning_rate) * ratio * direction;
            w[i] = w[i] - first[i];
        }
    }

    /// The worst element of the found tensor; 1 or less is right.
    [[nodiscard]] double distance_of(const Tensor& found, bool has_second) const {
        double worst = 0;
        for (std::size_t i = 0; i < elements; ++i) {
            worst = std::max(worst, testing::distance(found.master[i], w[i]));
            worst = std::max(worst, testing::distance(found.first[i], first[i]));
            if (has_second)
                worst = std::max(worst, testing::distance(found.second[i], second[i]));
        }
        return worst;
    }
    /// Elements whose bound is more than 1e-5 of the weight and its change.
    [[nodiscard]] std::size_t loose(const Tensor& before) const {
        std::size_t count = 0;
        for (std::size_t i = 0; i < elements; ++i) {
            const double change = std::abs(w[i].value - before.master[i]);
            count += w[i].error > 1e-5 * (std::abs(before.master[i]) + change) ? 1u : 0u;
        }
        return count;
    }

  private:
    std::vector<Bounded> w, first, second, gradient;
};

struct Followed {
    double worst = 0;
    std::size_t loose = 0;
};

Followed follow(const LayerwiseHyperParameters& hyper, const Update& update) {
    Followed followed;
    Tensor tensor;
    const bool has_second = needs(hyper).state_planes > 1;
    for (std::uint64_t t = 1; t <= steps; ++t) {
        tensor.set_gradient(t);
        Model model(tensor);
        std::visit([&](const auto& fields) { model.step(fields, t); }, hyper);
        followed.loose += model.loose(tensor);
        update(tensor, hyper, t);
        followed.worst = std::max(followed.worst, model.distance_of(tensor, has_second));
    }
    return followed;
}

const std::vector<LayerwiseHyperParameters> rules{
    LambHyperParameters{.learning_rate = 1e-2},
    LambHyperParameters{.learning_rate = 1e-2, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1},
    LarsHyperParameters{}, LarsHyperParameters{.momentum = 0.5, .weight_decay = 0.1}};

}  // namespace

TEMPLATE_TEST_CASE_SIG("layerwise rules follow their papers in double within their roundings", "",
                       ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    for (const auto& hyper : rules) {
        CAPTURE(optimizer_name(hyper));
        const Followed followed = follow(hyper, kernels_on(isa));
        CHECK(followed.worst <= 1);
        CHECK(followed.loose * 100 <= steps * elements);
    }
}

TEST_CASE("a layerwise coefficient or step that is one percent off leaves the bounds") {
    const auto off = [](const LayerwiseHyperParameters& hyper, auto change, float step_factor) {
        return follow(hyper,
                      [&](Tensor& tensor, const LayerwiseHyperParameters& h, std::uint64_t step) {
                          auto coefficients = make_coefficients(h, step, 1.0);
                          change(coefficients);
                          const auto sums = measure_run(Isa::scalar, coefficients, tensor.run());
                          const auto moved =
                              with_step(coefficients, layer_step(h, sums) * step_factor);
                          static_cast<void>(update_run(Isa::scalar, moved, tensor.run()));
                      })
            .worst;
    };
    const auto nothing = [](LayerwiseCoefficients&) {};
    for (const auto& hyper : rules) {
        CHECK(off(hyper, nothing, 1.0F) <= 1);
        CHECK(off(hyper, nothing, 1.01F) > 1);
    }
    for (const auto number :
         {&LambCoefficients::gradient_scale, &LambCoefficients::one_minus_beta1,
          &LambCoefficients::beta2, &LambCoefficients::one_minus_beta2,
          &LambCoefficients::inv_bias_correction1, &LambCoefficients::inv_sqrt_bias_correction2,
          &LambCoefficients::epsilon, &LambCoefficients::weight_decay})
        CHECK(off(
                  rules[1],
                  [number](LayerwiseCoefficients& coefficients) {
                      std::get<LambCoefficients>(coefficients.rule).*number *= 1.01F;
                  },
                  1.0F) > 1);
    for (const auto number : {&LarsCoefficients::gradient_scale, &LarsCoefficients::momentum,
                              &LarsCoefficients::weight_decay})
        CHECK(off(
                  rules[3],
                  [number](LayerwiseCoefficients& coefficients) {
                      std::get<LarsCoefficients>(coefficients.rule).*number *= 1.01F;
                  },
                  1.0F) > 1);
}

}  // namespace spillway::cpu_optim
