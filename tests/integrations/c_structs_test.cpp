// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/integrations/c_optimizer.h"

extern "C" std::uint64_t spillway_test_c_struct_bytes(int which);

using Catch::Matchers::Contains;
using namespace spillway::testing;

namespace {

/// T as a later version could have it.
template <class T>
struct Longer {
    T known{};
    std::uint64_t unknown = 0;
};

std::string thread_error() {
    return spillway_last_error(nullptr);
}

}  // namespace

TEST_CASE("the header means the same in C and in C++") {
    const std::array sizes{sizeof(spillway_parameter),   sizeof(spillway_group),
                           sizeof(spillway_options),     sizeof(spillway_step_rule),
                           sizeof(spillway_step_report), sizeof(spillway_statistics)};
    for (std::size_t i = 0; i < sizes.size(); ++i)
        CHECK(spillway_test_c_struct_bytes(static_cast<int>(i)) == sizes[i]);
    CHECK(spillway_abi_version() == SPILLWAY_ABI_VERSION);
    CHECK(std::string(spillway_version()) == SPILLWAY_EXPECTED_VERSION);
}

TEST_CASE("every status has a text of its own") {
    std::vector<std::string> texts;
    for (spillway_status status = SPILLWAY_OK; status <= SPILLWAY_FAILED; ++status) {
        const std::string text = spillway_status_text(status);
        CHECK(std::find(texts.begin(), texts.end(), text) == texts.end());
        texts.push_back(text);
    }
    CHECK(spillway_status_text(-1) == std::string("no status of this version"));
    CHECK(spillway_status_text(1000) == std::string("no status of this version"));
}

TEST_CASE("an _init function refuses a size that cannot be and NULL, by name") {
    const auto refuses = [](auto init, auto value, const std::string& name) {
        for (const std::uint64_t bytes :
             {std::uint64_t{0}, std::uint64_t{8}, std::uint64_t{sizeof value - 1},
              std::uint64_t{4097}, ~std::uint64_t{0}}) {
            CAPTURE(name, bytes);
            CHECK(init(&value, bytes) == SPILLWAY_INVALID_ARGUMENT);
            CHECK_THAT(thread_error(), Contains(name) && Contains(std::to_string(bytes)));
        }
        CHECK(init(nullptr, sizeof value) == SPILLWAY_INVALID_ARGUMENT);
        CHECK_THAT(thread_error(), Contains(name) && Contains("NULL"));
        CHECK(init(&value, sizeof value) == SPILLWAY_OK);
        CHECK(value.struct_bytes == sizeof value);
    };
    refuses(spillway_parameter_init, spillway_parameter{}, "parameter");
    refuses(spillway_options_init, spillway_options{}, "options");
    refuses(spillway_step_rule_init, spillway_step_rule{}, "rule");
    refuses(spillway_step_report_init, spillway_step_report{}, "report");
    refuses(spillway_statistics_init, spillway_statistics{}, "statistics");
    refuses([](spillway_group* group,
               std::uint64_t bytes) { return spillway_group_init(group, bytes, SPILLWAY_ADAM); },
            spillway_group{}, "group");
}

TEST_CASE("a kind of optimizer that does not exist is refused") {
    spillway_group group;
    for (const spillway_optimizer_kind kind : {-1, SPILLWAY_ADAFACTOR + 1, 1 << 30}) {
        CHECK(spillway_group_init(&group, sizeof group, kind) == SPILLWAY_INVALID_ARGUMENT);
        CHECK_THAT(thread_error(), Contains("kind") && Contains(std::to_string(kind)));
    }
}

TEST_CASE("groups start with torch's defaults") {
    const auto defaults = [](spillway_optimizer_kind kind) {
        spillway_group group;
        REQUIRE(spillway_group_init(&group, sizeof group, kind) == SPILLWAY_OK);
        return group;
    };
    const auto adamw = defaults(SPILLWAY_ADAMW);
    CHECK(adamw.learning_rate == 1e-3);
    CHECK(adamw.beta1 == 0.9);
    CHECK(adamw.beta2 == 0.999);
    CHECK(adamw.epsilon == 1e-8);
    CHECK(adamw.weight_decay == 0.01);
    CHECK(adamw.nesterov == 0);
    CHECK(adamw.momentum_decay == 4e-3);
    CHECK(defaults(SPILLWAY_ADAM).weight_decay == 0);
    CHECK(defaults(SPILLWAY_SGD).learning_rate == 1e-3);
    CHECK(defaults(SPILLWAY_SGD).beta1 == 0);
    CHECK(defaults(SPILLWAY_ADAGRAD).learning_rate == 1e-2);
    CHECK(defaults(SPILLWAY_ADAGRAD).epsilon == 1e-10);
    CHECK(defaults(SPILLWAY_LION).learning_rate == 1e-4);
    CHECK(defaults(SPILLWAY_LION).beta2 == 0.99);
    CHECK(defaults(SPILLWAY_RMSPROP).alpha == 0.99);
    CHECK(defaults(SPILLWAY_RMSPROP).epsilon == 1e-8);
}

TEST_CASE("groups of LAMB and LARS start with their papers' defaults") {
    spillway_group lamb, lars;
    REQUIRE(spillway_group_init(&lamb, sizeof lamb, SPILLWAY_LAMB) == SPILLWAY_OK);
    REQUIRE(spillway_group_init(&lars, sizeof lars, SPILLWAY_LARS) == SPILLWAY_OK);
    CHECK(lamb.epsilon == 1e-6);
    CHECK(lamb.least_weight_norm == 0);
    CHECK(std::isinf(lamb.most_weight_norm));
    CHECK(lamb.trust_coefficient == 0);
    CHECK(lars.momentum == 0.9);
    CHECK(lars.trust_coefficient == 1e-3);
    CHECK(lars.most_weight_norm == 0);
}

TEST_CASE("LAMB moves a tensor by its weights' norm, and callers without its bounds have none") {
    const auto bias_after_step = [](std::uint64_t struct_bytes, double most_weight_norm) {
        COptimizerArguments arguments(SPILLWAY_LAMB);
        auto& group = arguments.groups[0];
        REQUIRE(spillway_group_init(&group, struct_bytes, SPILLWAY_LAMB) == SPILLWAY_OK);
        group.learning_rate = 0.5;
        group.weight_decay = 0;
        if (most_weight_norm != 0)
            group.most_weight_norm = most_weight_norm;
        COptimizer optimizer(arguments);
        const std::vector<float> gradient(c_bias, 1.5f);
        REQUIRE(optimizer.give(c_bias_tensor, gradient) == SPILLWAY_OK);
        REQUIRE(optimizer.step() == SPILLWAY_OK);
        return arguments.bias;
    };
    // Five weights of 2, all moved alike: |w| / |u| is 2, so by half of 2.
    const auto bias = bias_after_step(sizeof(spillway_group), 0);
    for (const auto weight : bias)
        CHECK(weight == Approx(1).epsilon(1e-5));
    CHECK(bias_after_step(offsetof(spillway_group, trust_coefficient), 0) == bias);
    for (const auto weight : bias_after_step(sizeof(spillway_group), 1))
        CHECK(weight == Approx(2 - 0.5 / std::sqrt(5.0)).epsilon(1e-5));
}

TEST_CASE("Adafactor starts with torch's defaults, and moves a tensor by its weights' size") {
    COptimizerArguments arguments(SPILLWAY_ADAFACTOR);
    auto& group = arguments.groups[0];
    REQUIRE(spillway_group_init(&group, sizeof group, SPILLWAY_ADAFACTOR) == SPILLWAY_OK);
    CHECK((group.learning_rate == 1e-2 && group.beta2_decay == -0.8 && group.weight_decay == 0));
    CHECK((group.epsilon1 == std::ldexp(1.0, -23) && group.epsilon2 == 1e-3));
    CHECK((group.clip_threshold == 1 && group.beta1 == 0 && group.most_weight_norm == 0));
    group.learning_rate = 0.5;
    COptimizer optimizer(arguments);
    const std::vector<float> of_weight(c_rows * c_columns, 1.5f), of_bias(c_bias, 1.5f);
    REQUIRE(optimizer.give(c_weight_tensor, of_weight) == SPILLWAY_OK);
    REQUIRE(optimizer.give(c_bias_tensor, of_bias) == SPILLWAY_OK);
    REQUIRE(optimizer.step() == SPILLWAY_OK);
    // Weights of 1 and 2, an update of 1: by half of their own size.
    CHECK(std::ranges::all_of(arguments.weight, [](float w) { return w == Approx(0.5); }));
    CHECK(std::ranges::all_of(arguments.bias, [](float w) { return w == Approx(1); }));
    std::uint64_t count = 0;
    REQUIRE(spillway_factors(optimizer.get(), c_weight_tensor, &count) == SPILLWAY_OK);
    CHECK(count == c_rows + c_columns);
    REQUIRE(spillway_factors(optimizer.get(), c_bias_tensor, &count) == SPILLWAY_OK);
    CHECK(count == c_bias);
    std::vector<float> factors(c_rows + c_columns);
    REQUIRE(spillway_read_factors(optimizer.get(), c_weight_tensor, 0, factors.data(),
                                  factors.size()) == SPILLWAY_OK);
    CHECK(std::ranges::all_of(factors, [](float factor) { return factor == 2.25f; }));
    factors[0] = 7;
    REQUIRE(spillway_write_factors(optimizer.get(), c_weight_tensor, 12, factors.data(), 1) ==
            SPILLWAY_OK);
    REQUIRE(spillway_read_factors(optimizer.get(), c_weight_tensor, 12, factors.data() + 1, 1) ==
            SPILLWAY_OK);
    CHECK(factors[1] == 7);
    CHECK(spillway_read_factors(optimizer.get(), c_weight_tensor, 12, factors.data(), 2) ==
          SPILLWAY_INVALID_ARGUMENT);
    arguments.options.state = SPILLWAY_STATE_BF16;
    spillway_optimizer* refused = nullptr;
    CHECK(arguments.create(&refused) == SPILLWAY_INVALID_ARGUMENT);
    CHECK_THAT(thread_error(), Contains("Adafactor") && Contains("bf16"));
}

TEST_CASE("optimizers of the two families do not mix, and both go with lossy state") {
    COptimizerArguments arguments(SPILLWAY_LARS);
    spillway_optimizer* optimizer = nullptr;
    std::array<spillway_group, 2> groups{arguments.groups[0], arguments.groups[0]};
    REQUIRE(spillway_group_init(&groups[1], sizeof groups[1], SPILLWAY_ADAMW) == SPILLWAY_OK);
    CHECK(spillway_optimizer_create(arguments.parameters.data(), arguments.parameters.size(),
                                    groups.data(), groups.size(), &arguments.options,
                                    &optimizer) == SPILLWAY_INVALID_ARGUMENT);
    CHECK_THAT(thread_error(), Contains("groups[1]"));
    arguments.options.state = SPILLWAY_STATE_INT8;
    COptimizer lars(arguments);
    const std::vector<float> gradient(c_bias, 1.5f);
    REQUIRE(lars.give(c_bias_tensor, gradient) == SPILLWAY_OK);
    REQUIRE(lars.step() == SPILLWAY_OK);
    CHECK(arguments.bias.front() < 2);
    spillway_group adamw;
    REQUIRE(spillway_group_init(&adamw, sizeof adamw, SPILLWAY_ADAMW) == SPILLWAY_OK);
    CHECK(spillway_set_group(lars.get(), 0, &adamw) == SPILLWAY_INVALID_ARGUMENT);
    CHECK_THAT(lars.error(), Contains("LARS"));
    arguments.groups[0].learning_rate = 0.25;
    CHECK(spillway_set_group(lars.get(), 0, &arguments.groups[0]) == SPILLWAY_OK);
}

TEST_CASE(
    "NAdam is a flag of Adam and AdamW, and callers without momentum_decay have its default") {
    constexpr std::uint64_t first_version_bytes = offsetof(spillway_group, momentum_decay);
    REQUIRE(first_version_bytes == 112);
    const auto kind = GENERATE(as<spillway_optimizer_kind>{}, SPILLWAY_ADAM, SPILLWAY_ADAMW);
    const auto bias_after_steps = [&](std::uint64_t struct_bytes, std::int32_t nesterov,
                                      double momentum_decay) {
        COptimizerArguments arguments(kind);
        auto& group = arguments.groups[0];
        group.momentum_decay = 77;  // what lies behind the caller's struct is not read
        REQUIRE(spillway_group_init(&group, struct_bytes, kind) == SPILLWAY_OK);
        CHECK(group.struct_bytes == struct_bytes);
        CHECK(group.momentum_decay == (struct_bytes == first_version_bytes ? 77 : 4e-3));
        group.nesterov = nesterov;
        if (momentum_decay != 0)
            group.momentum_decay = momentum_decay;
        COptimizer optimizer(arguments);
        const std::vector<float> gradient(c_bias, 1.5f);
        for (int step = 0; step < 3; ++step) {
            REQUIRE(optimizer.give(c_bias_tensor, gradient) == SPILLWAY_OK);
            REQUIRE(optimizer.step() == SPILLWAY_OK);
        }
        return arguments.bias;
    };
    const auto nadam = bias_after_steps(sizeof(spillway_group), 1, 0);
    CHECK(bias_after_steps(first_version_bytes, 1, 0) == nadam);
    CHECK(bias_after_steps(sizeof(spillway_group), 1, 4e-3) == nadam);
    CHECK(bias_after_steps(sizeof(spillway_group), 1, 0.5) != nadam);
    const auto adam = bias_after_steps(sizeof(spillway_group), 0, 0);
    CHECK(adam != nadam);
    CHECK(bias_after_steps(first_version_bytes, 0, 0) == adam);
    CHECK(bias_after_steps(sizeof(spillway_group), 0, 0.5) == adam);
}

TEST_CASE("values that NAdam cannot have are refused by name") {
    COptimizerArguments arguments(SPILLWAY_ADAM);
    arguments.groups[0].nesterov = 1;
    spillway_optimizer* optimizer = nullptr;
    const auto refuses = [&](const std::string& field) {
        CHECK(arguments.create(&optimizer) == SPILLWAY_INVALID_ARGUMENT);
        CHECK(optimizer == nullptr);
        CHECK_THAT(thread_error(), Contains("NAdam") && Contains(field));
    };
    SECTION("amsgrad") {
        arguments.groups[0].amsgrad = 1;
        refuses("amsgrad");
    }
    SECTION("a negative momentum_decay") {
        arguments.groups[0].momentum_decay = -1;
        refuses("momentum_decay");
    }
}

TEST_CASE("a hyper-parameter of another kind of optimizer is refused by name") {
    COptimizerArguments arguments;
    spillway_optimizer* optimizer = nullptr;
    const auto refuses = [&](const std::string& field) {
        CHECK(arguments.create(&optimizer) == SPILLWAY_INVALID_ARGUMENT);
        CHECK(optimizer == nullptr);
        CHECK_THAT(thread_error(), Contains("groups[0]." + field));
    };
    SECTION("beta1 of SGD") {
        arguments.groups[0].beta1 = 0.9;
        refuses("beta1");
    }
    SECTION("momentum_decay of SGD") {
        arguments.groups[0].momentum_decay = 4e-3;
        refuses("momentum_decay");
    }
    SECTION("centred of SGD") {
        arguments.groups[0].centred = 1;
        refuses("centred");
    }
    SECTION("a flag that is neither 0 nor 1") {
        arguments.groups[0].nesterov = 2;
        refuses("nesterov");
    }
    SECTION("what is reserved") {
        arguments.groups[0].reserved = 1;
        refuses("reserved");
    }
    SECTION("a kind that is none") {
        arguments.groups[0].optimizer = 77;
        refuses("optimizer");
    }
}

TEST_CASE("callers whose options end before the format of the state have exact state") {
    constexpr std::uint64_t first_version_bytes = offsetof(spillway_options, state);
    COptimizerArguments arguments(SPILLWAY_ADAMW);
    for (const auto bytes : {first_version_bytes, std::uint64_t{sizeof(spillway_options)}}) {
        arguments.options.struct_bytes = bytes;
        arguments.options.state = SPILLWAY_STATE_INT8;  // not read behind the caller's struct
        COptimizer optimizer(arguments);
        float* values = nullptr;
        std::uint64_t elements = 77;
        REQUIRE(spillway_state_view(optimizer.get(), c_weight_tensor, 0, &values, &elements) ==
                SPILLWAY_OK);
        CHECK((values != nullptr) == (bytes == first_version_bytes));
        CHECK(elements == (bytes == first_version_bytes ? c_rows * c_columns : 0));
    }
}

TEST_CASE("callers whose options end before the average keep none") {
    COptimizerArguments arguments;
    arguments.options.struct_bytes = offsetof(spillway_options, average);
    arguments.options.average = "no average at all";  // not read behind the caller's struct
    COptimizer optimizer(arguments);
    float value = 0;
    CHECK(spillway_read_average(optimizer.get(), c_bias_tensor, 0, &value, 1) ==
          SPILLWAY_WRONG_ORDER);
}

TEST_CASE("a longer struct is taken if what is unknown is zero") {
    COptimizerArguments arguments;
    Longer<spillway_options> options;
    REQUIRE(spillway_options_init(&options.known, sizeof options) == SPILLWAY_OK);
    CHECK(options.known.struct_bytes == sizeof options);
    options.known.host_bytes = arguments.options.host_bytes;
    spillway_optimizer* optimizer = nullptr;
    const auto create = [&] {
        return spillway_optimizer_create(arguments.parameters.data(), 2, arguments.groups.data(), 1,
                                         &options.known, &optimizer);
    };
    CHECK(create() == SPILLWAY_OK);
    CHECK(spillway_optimizer_destroy(optimizer) == SPILLWAY_OK);
    options.unknown = 1;
    CHECK(create() == SPILLWAY_INVALID_ARGUMENT);
    CHECK(optimizer == nullptr);
    CHECK_THAT(thread_error(), Contains("options") && Contains("newer library"));
}

TEST_CASE("arrays of longer structs are read in their caller's steps") {
    COptimizerArguments arguments;
    std::array<Longer<spillway_parameter>, 2> parameters;
    for (std::size_t i = 0; i < 2; ++i) {
        parameters[i].known = arguments.parameters[i];
        parameters[i].known.struct_bytes = sizeof parameters[i];
    }
    spillway_optimizer* optimizer = nullptr;
    const auto create = [&] {
        return spillway_optimizer_create(&parameters[0].known, 2, arguments.groups.data(), 1,
                                         &arguments.options, &optimizer);
    };
    REQUIRE(create() == SPILLWAY_OK);
    std::uint32_t tensor = 77;
    CHECK(spillway_find_tensor(optimizer, "bias", &tensor) == SPILLWAY_OK);
    CHECK(tensor == 1);
    CHECK(spillway_optimizer_destroy(optimizer) == SPILLWAY_OK);
    parameters[1].known.struct_bytes = sizeof(spillway_parameter);
    CHECK(create() == SPILLWAY_INVALID_ARGUMENT);
    CHECK_THAT(thread_error(), Contains("parameters[1]") && Contains("equal"));
}

TEST_CASE("a longer result has zeros in what the library does not know") {
    COptimizerArguments arguments;
    COptimizer optimizer(arguments);
    Longer<spillway_statistics> statistics;
    statistics.known.struct_bytes = sizeof statistics;
    statistics.unknown = 77;
    CHECK(spillway_get_statistics(optimizer.get(), &statistics.known) == SPILLWAY_OK);
    CHECK(statistics.known.struct_bytes == sizeof statistics);
    CHECK(statistics.unknown == 0);
    CHECK(statistics.known.host_bytes > 0);
}
