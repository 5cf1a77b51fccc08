// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/elementwise_coefficients.h"

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include <catch2/catch.hpp>

#include "cpu_optim/elementwise.h"
#include "tests/cpu_optim/elementwise_cases.h"

namespace spillway::cpu_optim {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

template <class Coefficients>
Coefficients made(const HyperParameters& hyper, std::uint64_t step, double scale = 1) {
    return std::get<Coefficients>(make_coefficients(hyper, step, scale).rule);
}

std::string refusal(const HyperParameters& hyper) {
    try {
        check(hyper);
    } catch (const std::invalid_argument& error) {
        return error.what();
    }
    return "accepted";
}

/// Sets one field of `Hyper` to values out of its range, then to its edges.
template <class Hyper>
void require_not_negative(std::string_view name, double Hyper::*field) {
    for (const double value : {-1e-300, -1.0, infinity, -infinity, nan}) {
        CAPTURE(name, value);
        Hyper hyper;
        hyper.*field = value;
        const std::string text = refusal(hyper);
        CAPTURE(text);
        CHECK(text.starts_with(std::string(optimizer_name(hyper)) + ": " + std::string(name) +
                               " is "));
        CHECK(text.ends_with("must be a finite number, 0 or more"));
        REQUIRE_THROWS_AS(make_coefficients(hyper, 1, 1.0), std::invalid_argument);
    }
    Hyper hyper;
    hyper.*field = 0;
    CHECK(refusal(hyper) == "accepted");
}

template <class Hyper>
void require_beta(std::string_view name, double Hyper::*field) {
    for (const double value : {-1e-300, 1.0, 1.5, infinity, nan}) {
        CAPTURE(name, value);
        Hyper hyper;
        hyper.*field = value;
        const std::string text = refusal(hyper);
        CAPTURE(text);
        CHECK(text.starts_with(std::string(optimizer_name(hyper)) + ": " + std::string(name) +
                               " is "));
        CHECK(text.ends_with("must be at least 0 and below 1"));
    }
    Hyper hyper;
    for (const double edge : {0.0, std::nextafter(1.0, 0.0)}) {
        hyper.*field = edge;
        CHECK(refusal(hyper) == "accepted");
    }
}

void require_nadam_refuses() {
    CHECK(refusal(AdamHyperParameters{.momentum_decay = -1}) == "accepted");
    CHECK(refusal(AdamHyperParameters{.nesterov = Nesterov::on, .momentum_decay = -1}) ==
          "NAdam: momentum_decay is -1 and must be a finite number, 0 or more");
    CHECK(refusal(AdamHyperParameters{.amsgrad = Amsgrad::on, .nesterov = Nesterov::on}) ==
          "NAdam: amsgrad is 1 and must be 0: there is no NAdam with it");
}

}  // namespace

TEST_CASE("every field out of range is refused with optimizer, name and what is allowed") {
    require_not_negative("learning_rate", &AdamHyperParameters::learning_rate);
    require_not_negative("epsilon", &AdamHyperParameters::epsilon);
    require_not_negative("weight_decay", &AdamHyperParameters::weight_decay);
    require_beta("beta1", &AdamHyperParameters::beta1);
    require_beta("beta2", &AdamHyperParameters::beta2);
    require_nadam_refuses();
    require_not_negative("learning_rate", &SgdHyperParameters::learning_rate);
    require_not_negative("momentum", &SgdHyperParameters::momentum);
    require_not_negative("weight_decay", &SgdHyperParameters::weight_decay);
    require_not_negative("learning_rate", &AdagradHyperParameters::learning_rate);
    require_not_negative("learning_rate_decay", &AdagradHyperParameters::learning_rate_decay);
    require_not_negative("weight_decay", &AdagradHyperParameters::weight_decay);
    require_not_negative("initial_accumulator_value",
                         &AdagradHyperParameters::initial_accumulator_value);
    require_not_negative("epsilon", &AdagradHyperParameters::epsilon);
    require_not_negative("learning_rate", &LionHyperParameters::learning_rate);
    require_not_negative("weight_decay", &LionHyperParameters::weight_decay);
    require_beta("beta1", &LionHyperParameters::beta1);
    require_beta("beta2", &LionHyperParameters::beta2);
    require_not_negative("learning_rate", &RmspropHyperParameters::learning_rate);
    require_not_negative("alpha", &RmspropHyperParameters::alpha);
    require_not_negative("epsilon", &RmspropHyperParameters::epsilon);
    require_not_negative("weight_decay", &RmspropHyperParameters::weight_decay);
    require_not_negative("momentum", &RmspropHyperParameters::momentum);
}

TEST_CASE("nesterov needs momentum and no dampening; dampening itself only has to be finite") {
    CHECK(refusal(SgdHyperParameters{.nesterov = Nesterov::on}) ==
          "SGD: momentum is 0 and must be more than 0 with nesterov");
    CHECK(
        refusal(SgdHyperParameters{.momentum = 0.9, .dampening = 0.5, .nesterov = Nesterov::on}) ==
        "SGD: dampening is 0.5 and must be 0 with nesterov");
    CHECK(refusal(SgdHyperParameters{.momentum = 0.9, .nesterov = Nesterov::on}) == "accepted");
    CHECK(refusal(SgdHyperParameters{.dampening = nan}) ==
          "SGD: dampening is nan and must be a finite number");
    CHECK(refusal(SgdHyperParameters{.momentum = 0.9, .dampening = -0.5}) == "accepted");
    CHECK(refusal(RmspropHyperParameters{.alpha = 1.5}) == "accepted");
}

TEST_CASE("messages name the optimizer the user chose") {
    CHECK(optimizer_name(AdamHyperParameters{}) == "AdamW");
    CHECK(optimizer_name(AdamHyperParameters{.decay = WeightDecay::l2}) == "Adam");
    CHECK(optimizer_name(AdamHyperParameters{.nesterov = Nesterov::on}) == "NAdam");
    CHECK(optimizer_name(SgdHyperParameters{}) == "SGD");
    CHECK(optimizer_name(AdagradHyperParameters{}) == "Adagrad");
    CHECK(optimizer_name(LionHyperParameters{}) == "Lion");
    CHECK(optimizer_name(RmspropHyperParameters{}) == "RMSprop");
    CHECK(refusal(AdamHyperParameters{.learning_rate = -1}) ==
          "AdamW: learning_rate is -1 and must be a finite number, 0 or more");
    CHECK(refusal(AdamHyperParameters{.beta1 = 1, .decay = WeightDecay::l2}) ==
          "Adam: beta1 is 1 and must be at least 0 and below 1");
}

TEST_CASE("step 0, a bad gradient scale and numbers no float holds are refused for every rule") {
    for (const auto& [name, hyper] : testing::every_rule()) {
        CAPTURE(name);
        CHECK_THROWS_WITH(make_coefficients(hyper, 0, 1.0),
                          std::string(optimizer_name(hyper)) +
                              ": step is 0 and must be 1 at a tensor's first update");
        for (const double scale : {-1.0, infinity, nan})
            CHECK_THROWS_AS(make_coefficients(hyper, 1, scale), std::invalid_argument);
        CHECK_THROWS_AS(make_coefficients(hyper, 1, 1e300), std::invalid_argument);
    }
    CHECK_THROWS_WITH(make_coefficients(SgdHyperParameters{.learning_rate = 1e39}, 1, 1.0),
                      "SGD: learning_rate comes to 1e+39, more than a float holds: lower the "
                      "hyper-parameters behind it");
}

TEST_CASE("hyper-parameters and coefficients agree about the planes of state") {
    for (const auto& [name, hyper] : testing::every_rule())
        for (const std::uint64_t step : {1u, 2u}) {
            CAPTURE(name, step);
            const auto coefficients = make_coefficients(hyper, step, 1.0);
            const std::size_t planes =
                std::visit([](const auto& rule) { return state_planes(rule); }, coefficients.rule);
            CHECK(planes == state_planes(hyper));
            CHECK(planes <= most_state_planes);
        }
    CHECK(state_planes(AdamHyperParameters{}) == 2);
    CHECK(state_planes(AdamHyperParameters{.amsgrad = Amsgrad::on}) == 3);
    CHECK(state_planes(SgdHyperParameters{}) == 0);
    CHECK(state_planes(SgdHyperParameters{.momentum = 0.9}) == 1);
    CHECK(state_planes(AdagradHyperParameters{}) == 1);
    CHECK(state_planes(LionHyperParameters{}) == 1);
    CHECK(state_planes(RmspropHyperParameters{}) == 1);
    CHECK(state_planes(RmspropHyperParameters{.momentum = 0.9}) == 2);
    CHECK(state_planes(RmspropHyperParameters{.centred = Centred::on}) == 2);
    CHECK(state_planes(RmspropHyperParameters{.momentum = 0.9, .centred = Centred::on}) == 3);
}

TEST_CASE("defaults are torch's, and Lion's are its authors'") {
    const AdamHyperParameters adam;
    CHECK((adam.learning_rate == 1e-3 && adam.beta1 == 0.9 && adam.beta2 == 0.999));
    CHECK((adam.epsilon == 1e-8 && adam.weight_decay == 0.01));
    const SgdHyperParameters sgd;
    CHECK((sgd.learning_rate == 1e-3 && sgd.momentum == 0 && sgd.dampening == 0));
    const AdagradHyperParameters adagrad;
    CHECK((adagrad.learning_rate == 1e-2 && adagrad.learning_rate_decay == 0));
    CHECK((adagrad.initial_accumulator_value == 0 && adagrad.epsilon == 1e-10));
    const LionHyperParameters lion;
    CHECK((lion.learning_rate == 1e-4 && lion.beta1 == 0.9 && lion.beta2 == 0.99));
    const RmspropHyperParameters rmsprop;
    CHECK((rmsprop.learning_rate == 1e-2 && rmsprop.alpha == 0.99 && rmsprop.epsilon == 1e-8));
    CHECK((sgd.weight_decay == 0 && adagrad.weight_decay == 0 && lion.weight_decay == 0));
    CHECK((rmsprop.weight_decay == 0 && rmsprop.momentum == 0));
}

TEST_CASE("Adam's bias corrections agree with powers in long double up to ten million steps") {
    const AdamHyperParameters hyper{.beta1 = 0.95, .beta2 = 0.9999};
    for (const std::uint64_t step :
         {1UL, 2UL, 3UL, 10UL, 63UL, 64UL, 1000UL, 99'999UL, 10'000'000UL}) {
        CAPTURE(step);
        const auto exact = [step](double beta) {
            return 1 - std::pow(static_cast<long double>(beta), static_cast<long double>(step));
        };
        const auto c = made<AdamCoefficients>(hyper, step, 0.25);
        const auto step_size = static_cast<double>(1e-3L / exact(hyper.beta1));
        const auto root = static_cast<double>(1 / std::sqrt(exact(hyper.beta2)));
        CHECK(c.step_size == Approx(step_size).epsilon(1e-7).margin(0));
        CHECK(c.inv_sqrt_bias_correction2 == Approx(root).epsilon(1e-7).margin(0));
        CHECK(c.gradient_scale == 0.25F);
        CHECK(c.decay == static_cast<float>(1e-3 * 0.01));
        CHECK(c.one_minus_beta2 == static_cast<float>(1 - 0.9999));
    }
}

TEST_CASE("what depends on a tensor's step does so as torch has it") {
    const SgdHyperParameters momentum{.momentum = 0.9};
    CHECK(made<SgdCoefficients>(momentum, 1).buffer == MomentumBuffer::starts);
    CHECK(made<SgdCoefficients>(momentum, 2).buffer == MomentumBuffer::continues);
    CHECK(made<SgdCoefficients>(SgdHyperParameters{}, 1).buffer == MomentumBuffer::none);
    const AdagradHyperParameters adagrad{.learning_rate_decay = 0.5,
                                         .initial_accumulator_value = 0.25};
    CHECK(made<AdagradCoefficients>(adagrad, 1).added_accumulator == 0.25F);
    CHECK(made<AdagradCoefficients>(adagrad, 2).added_accumulator == 0);
    CHECK(made<AdagradCoefficients>(adagrad, 1).step_size == 0.01F);
    CHECK(made<AdagradCoefficients>(adagrad, 9).step_size == static_cast<float>(1e-2 / 5));
}

}  // namespace spillway::cpu_optim
