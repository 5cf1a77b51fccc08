// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
//
// The elementwise optimizers and torch's own over 200 steps of gradients that change sign and span
// 1e-8 to 1e3. Each must stay within the bound that running error analysis gives for the formulas
// in float, from the formulas' values in double, and so within twice that of one another.
#include <algorithm>
#include <bit>
#include <span>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "cpu_optim/elementwise.h"
#include "tests/cpu_optim/elementwise_model.h"
#include "tests/cpu_optim/torch_inputs.h"
#include "tests/cpu_optim/torch_transcripts.h"

namespace spillway::cpu_optim {
namespace {

using testing::ElementwiseModel;

constexpr std::size_t elements = 19;

struct Case {
    std::string name;
    HyperParameters hyper;
    std::span<const std::uint32_t, elements> torch;
};

/// ELEMENTWISE of tests/python/torch_transcripts.py, in its order.
std::vector<Case> every_case() {
    namespace transcript = testing::transcript;
    constexpr auto l2 = WeightDecay::l2;
    return {
        {"AdamW", AdamHyperParameters{.learning_rate = 3e-3, .weight_decay = 0.1},
         transcript::adamw_0},
        {"AdamW, amsgrad, maximise",
         AdamHyperParameters{.learning_rate = 3e-3,
                             .weight_decay = 0.1,
                             .amsgrad = Amsgrad::on,
                             .objective = Objective::maximise},
         transcript::adamw_1},
        {"Adam", AdamHyperParameters{.learning_rate = 3e-3, .weight_decay = 0.01, .decay = l2},
         transcript::adam_2},
        {"NAdam",
         AdamHyperParameters{
             .learning_rate = 2e-3, .weight_decay = 0.01, .decay = l2, .nesterov = Nesterov::on},
         transcript::nadam_3},
        {"SGD",
         SgdHyperParameters{
             .learning_rate = 1e-3, .momentum = 0.9, .dampening = 0.1, .weight_decay = 0.01},
         transcript::sgd_4},
        {"SGD, Nesterov",
         SgdHyperParameters{.learning_rate = 1e-3, .momentum = 0.9, .nesterov = Nesterov::on},
         transcript::sgd_5},
        {"Adagrad",
         AdagradHyperParameters{.learning_rate = 0.02,
                                .learning_rate_decay = 0.01,
                                .weight_decay = 0.01,
                                .initial_accumulator_value = 0.1},
         transcript::adagrad_6},
        {"RMSprop",
         RmspropHyperParameters{.learning_rate = 1e-3, .alpha = 0.9, .weight_decay = 0.01},
         transcript::rmsprop_7},
        {"RMSprop, momentum, centred",
         RmspropHyperParameters{.learning_rate = 1e-3, .momentum = 0.5, .centred = Centred::on},
         transcript::rmsprop_8}};
}

std::vector<float> after_200_steps(Isa isa, const HyperParameters& hyper) {
    std::vector<float> master(elements), gradient(elements);
    std::array<std::vector<float>, most_state_planes> state;
    ElementwiseRun run{.elements = elements, .master = master.data()};
    run.gradient = gradient.data();
    for (std::size_t plane = 0; plane < state.size(); ++plane) {
        state[plane].resize(elements);
        run.state[plane] = state[plane].data();
    }
    for (std::size_t i = 0; i < elements; ++i)
        master[i] = testing::transcript_weight(i);
    for (std::uint64_t t = 1; t <= testing::transcript_steps; ++t) {
        for (std::size_t i = 0; i < elements; ++i)
            gradient[i] = testing::transcript_gradient(t, i);
        REQUIRE(update_run(isa, make_coefficients(hyper, t, 1.0), run) == 0);
    }
    return master;
}

testing::Bounded weight_of_model(const HyperParameters& hyper, std::size_t element) {
    ElementwiseModel model(hyper, {testing::transcript_weight(element), {}});
    for (std::uint64_t t = 1; t <= testing::transcript_steps; ++t)
        model.step(t, testing::transcript_gradient(t, element), 1.0);
    return model.w();
}

}  // namespace

TEMPLATE_TEST_CASE_SIG("the rules and torch's end 200 steps within the bound of the roundings", "",
                       ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    for (const Case& at : every_case()) {
        const auto found = after_200_steps(isa, at.hyper);
        for (std::size_t i = 0; i < elements; ++i) {
            CAPTURE(at.name, i);
            const auto torch = std::bit_cast<float>(at.torch[i]);
            const testing::Bounded model = weight_of_model(at.hyper, i);
            CHECK(testing::distance(found[i], model) <= 1);
            CHECK(testing::distance(torch, model) <= 1);
            CHECK(model.error <= 1e-3 * (std::abs(model.value) + 1e-2));
            // A weight is rounded 200 times on its way.
            CHECK(found[i] == Approx(torch).epsilon(200 * 0x1p-24).margin(1e-7));
        }
    }
}

TEST_CASE("a learning rate that is one percent off leaves the bound, whatever the rule") {
    for (const Case& at : every_case()) {
        CAPTURE(at.name);
        HyperParameters wrong = at.hyper;
        std::visit([](auto& fields) { fields.learning_rate *= 1.01; }, wrong);
        const auto found = after_200_steps(Isa::scalar, wrong);
        std::size_t outside = 0;
        for (std::size_t i = 0; i < elements; ++i)
            outside += testing::distance(found[i], weight_of_model(at.hyper, i)) > 1 ? 1u : 0u;
        CHECK(outside > elements / 2);
    }
}

}  // namespace spillway::cpu_optim
