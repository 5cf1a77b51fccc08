// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/settings/optimizer_choice.h"

#include <stdexcept>
#include <type_traits>
#include <variant>

#include <catch2/catch.hpp>

namespace spillway::engine {

TEST_CASE("optimizer_choice: every name makes hyper-parameters that pass their check") {
    for (const auto& name : elementwise_optimizer_names()) {
        CAPTURE(name);
        TrainSettings settings;
        settings.optimizer = name;
        const auto hyper = hyper_parameters(settings, 0.5, 0.25);
        CHECK_NOTHROW(cpu_optim::check(hyper));
        CHECK(std::visit([](const auto& fields) { return fields.learning_rate; }, hyper) == 0.5);
        CHECK(std::visit([](const auto& fields) { return fields.weight_decay; }, hyper) == 0.25);
        CHECK(rest_bytes_per_parameter(settings) ==
              static_cast<double>(4 + 4 * cpu_optim::state_planes(hyper)));
    }
}

TEST_CASE("optimizer_choice: the format of the state decides bytes and exactness") {
    TrainSettings settings;
    CHECK(is_exact(settings));
    settings.state = "bf16";
    CHECK(rest_bytes_per_parameter(settings) == 8);
    CHECK_FALSE(is_exact(settings));
    settings.state = "int8";
    CHECK(rest_bytes_per_parameter(settings) == 6.25);
    CHECK_FALSE(is_exact(settings));
    settings.optimizer = "lion";
    CHECK(rest_bytes_per_parameter(settings) == 5.25);
    settings.optimizer = "sgd";
    settings.momentum = 0;  // no state that could lose anything
    CHECK(rest_bytes_per_parameter(settings) == 4);
    CHECK(is_exact(settings));
}

TEST_CASE("optimizer_choice: optimizers of whole tensors say what they need, and their fields") {
    TrainSettings settings;
    settings.optimizer = "lamb";
    settings.weight_decay = 0.25;
    settings.epsilon = 1e-6;
    CHECK(needs_of(settings).passes == 2);
    CHECK(rest_bytes_per_parameter(settings) == 12);
    hyper_groups(settings, 0.5).visit([](const auto& groups) {
        using Groups = std::decay_t<decltype(groups)>;
        if constexpr (std::is_same_v<Groups, offload::HyperGroups::Layerwise>) {
            const auto& decayed = std::get<cpu_optim::LambHyperParameters>(groups.at(0));
            CHECK((decayed.learning_rate == 0.5 && decayed.weight_decay == 0.25));
            CHECK((decayed.beta2 == 0.95 && decayed.epsilon == 1e-6));
            CHECK(std::get<cpu_optim::LambHyperParameters>(groups.at(1)).weight_decay == 0);
        } else {
            FAIL("lamb is of the other family");
        }
    });
    settings.optimizer = "lars";
    settings.trust_coefficient = 0.01;
    CHECK(rest_bytes_per_parameter(settings) == 8);
    hyper_groups(settings, 0.5).visit([](const auto& groups) {
        using Groups = std::decay_t<decltype(groups)>;
        if constexpr (std::is_same_v<Groups, offload::HyperGroups::Layerwise>) {
            const auto& lars = std::get<cpu_optim::LarsHyperParameters>(groups.at(0));
            CHECK((lars.momentum == 0.9 && lars.trust_coefficient == 0.01));
        } else {
            FAIL("lars is of the other family");
        }
    });
}

TEST_CASE("optimizer_choice: adafactor keeps weights alone, and takes three passes") {
    TrainSettings settings;
    settings.optimizer = "adafactor";
    settings.beta2_decay = -0.5;
    settings.update_clip = 2;
    CHECK((needs_of(settings).passes == 3 && needs_of(settings).state_planes == 0));
    CHECK(second_moments_of(settings) == offload::SecondMoments::factored);
    CHECK(rest_bytes_per_parameter(settings) == 4);
    CHECK(is_exact(settings));
    hyper_groups(settings, 0.5).visit([](const auto& groups) {
        using Groups = std::decay_t<decltype(groups)>;
        if constexpr (std::is_same_v<Groups, offload::HyperGroups::Factored>) {
            const auto& decayed = groups.at(0);
            CHECK((decayed.learning_rate == 0.5 && decayed.weight_decay == 0.1));
            CHECK((decayed.beta2_decay == -0.5 && decayed.clip_threshold == 2));
            CHECK(groups.at(1).weight_decay == 0);
        } else {
            FAIL("adafactor is of another family");
        }
    });
    settings.optimizer = "lamb";
    CHECK(second_moments_of(settings) == offload::SecondMoments::planes);
}

TEST_CASE("optimizer_choice: every name makes groups for a step") {
    for (const auto& name : optimizer_names()) {
        CAPTURE(name);
        TrainSettings settings;
        settings.optimizer = name;
        CHECK(one_hyper_group(settings, 0.5).size() == 1);
        CHECK(one_hyper_group(settings, 0.5).optimizer_name(0) ==
              hyper_groups(settings, 0.5).optimizer_name(0));
        CHECK(hyper_groups(settings, 0.5).size() == 2);
        CHECK_NOTHROW(hyper_groups(settings, 0.5).check(cpu_optim::StateFormat::fp32));
    }
}

TEST_CASE("optimizer_choice: every elementwise optimizer can keep its state in every format") {
    for (const auto& name : elementwise_optimizer_names()) {
        TrainSettings settings;
        settings.optimizer = name;
        const auto hyper = hyper_parameters(settings, 0.5, 0.25);
        for (const auto format : cpu_optim::every_state_format) {
            CAPTURE(name, cpu_optim::state_format_name(format));
            CHECK_NOTHROW(cpu_optim::check(hyper, format));
        }
    }
}

TEST_CASE("optimizer_choice: adamw, adam and nadam are three rules of one kind") {
    const auto made = [](const char* name) {
        TrainSettings settings;
        settings.optimizer = name;
        settings.beta1 = 0.8;
        return hyper_parameters(settings, 1e-3, 0.1);
    };
    CHECK(cpu_optim::optimizer_name(made("adamw")) == "AdamW");
    CHECK(cpu_optim::optimizer_name(made("adam")) == "Adam");
    CHECK(cpu_optim::optimizer_name(made("nadam")) == "NAdam");
    const auto nadam = std::get<cpu_optim::AdamHyperParameters>(made("nadam"));
    CHECK(nadam.decay == cpu_optim::WeightDecay::l2);  // torch's default
    CHECK(nadam.momentum_decay == 4e-3);
    CHECK(nadam.beta1 == 0.8);
}

TEST_CASE("optimizer_choice: a name that is none is refused with those there are") {
    TrainSettings settings;
    settings.optimizer = "adamax";
    CHECK_THROWS_WITH(hyper_parameters(settings, 1, 0),
                      Catch::Contains("'adamax'") && Catch::Contains("nadam"));
    CHECK_THROWS_WITH(hyper_groups(settings, 1),
                      Catch::Contains("'adamax'") && Catch::Contains("lamb"));
}

}  // namespace spillway::engine
