// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/integrations/c_optimizer.h"
#include "tests/support/temporary_folder.h"

using Catch::Matchers::Contains;
using namespace spillway::testing;

namespace {

const float inputs_f32[64] = {};
float outputs_f32[64];
std::int16_t outputs_i16[64];

using Call = std::function<spillway_status(spillway_optimizer*)>;

/// Every function that takes an optimizer, with arguments that are right.
std::vector<std::pair<std::string, Call>> all_calls(const COptimizerArguments& arguments) {
    static std::uint64_t count, bytes;
    static std::uint32_t tensor;
    static std::int32_t flag;
    static const char* name;
    static const void* state;
    static float* view;
    static spillway_statistics statistics;
    static spillway_step_rule rule;
    spillway_statistics_init(&statistics, sizeof statistics);
    rule = plain_rule();
    using O = spillway_optimizer*;
    return {
        {"tensor_count", [](O o) { return spillway_tensor_count(o, &count); }},
        {"find_tensor", [](O o) { return spillway_find_tensor(o, "bias", &tensor); }},
        {"state_planes", [](O o) { return spillway_state_planes(o, &count); }},
        {"io_backend_name", [](O o) { return spillway_io_backend_name(o, &name); }},
        {"get_statistics", [](O o) { return spillway_get_statistics(o, &statistics); }},
        {"set_group", [&](O o) { return spillway_set_group(o, 0, &arguments.groups[0]); }},
        {"rebind", [&](O o) { return spillway_rebind(o, 0, arguments.parameters[0].data); }},
        {"give_gradient",
         [](O o) {
             return spillway_give_gradient(o, 1, inputs_f32, c_bias, SPILLWAY_GRADIENT_FP32);
         }},
        {"discard_gradients", [](O o) { return spillway_discard_gradients(o); }},
        {"begin_step", [](O o) { return spillway_begin_step(o, &rule, nullptr); }},
        {"begin_streamed_step", [](O o) { return spillway_begin_streamed_step(o, 1.0); }},
        {"end_gradients", [](O o) { return spillway_end_gradients(o); }},
        {"wait_for", [](O o) { return spillway_wait_for(o, 0); }},
        {"wait", [](O o) { return spillway_wait(o); }},
        {"wait_limited", [](O o) { return spillway_wait_limited(o, 1, &flag); }},
        {"begin_commit", [](O o) { return spillway_begin_commit(o, 0, nullptr, 0); }},
        {"recover", [](O o) { return spillway_recover(o, &flag, &count); }},
        {"recovered_client_state",
         [](O o) { return spillway_recovered_client_state(o, &state, &bytes); }},
        {"steps", [](O o) { return spillway_steps(o, 0, &count); }},
        {"set_steps", [](O o) { return spillway_set_steps(o, 0, 1); }},
        {"read_state", [](O o) { return spillway_read_state(o, 0, 0, 0, outputs_f32, 1); }},
        {"write_state", [](O o) { return spillway_write_state(o, 0, 0, 0, inputs_f32, 1); }},
        {"read_masters", [](O o) { return spillway_read_masters(o, 0, 0, outputs_f32, 1); }},
        {"read_average", [](O o) { return spillway_read_average(o, 0, 0, outputs_f32, 1); }},
        {"write_average", [](O o) { return spillway_write_average(o, 0, 0, inputs_f32, 1); }},
        {"factors", [](O o) { return spillway_factors(o, 0, &count); }},
        {"read_factors", [](O o) { return spillway_read_factors(o, 0, 0, outputs_f32, 1); }},
        {"write_factors", [](O o) { return spillway_write_factors(o, 0, 0, inputs_f32, 1); }},
        {"read_residue", [](O o) { return spillway_read_residue(o, 0, 0, outputs_i16, 1); }},
        {"write_residue", [](O o) { return spillway_write_residue(o, 0, 0, outputs_i16, 1); }},
        {"state_view", [](O o) { return spillway_state_view(o, 0, 0, &view, &count); }},
        {"reset_residue", [](O o) { return spillway_reset_residue(o, 0); }},
        {"export_masters",
         [](O o) { return spillway_export_masters(o, "x.safetensors", SPILLWAY_EXPORT_FP32); }},
    };
}

}  // namespace

TEST_CASE("every call on a NULL optimizer is refused with a text") {
    const COptimizerArguments arguments;
    for (const auto& [name, call] : all_calls(arguments)) {
        CAPTURE(name);
        spillway_options_init(nullptr, 0);  // another text of this thread
        CHECK(call(nullptr) == SPILLWAY_INVALID_ARGUMENT);
        CHECK_THAT(spillway_last_error(nullptr), Contains("optimizer is NULL"));
    }
    CHECK(spillway_optimizer_destroy(nullptr) == SPILLWAY_OK);
}

TEST_CASE("every NULL argument is refused by name and changes nothing") {
    COptimizerArguments arguments;
    COptimizer optimizer(arguments);
    auto* o = optimizer.get();
    std::uint64_t number = 77;
    std::int32_t flag = 77;
    float* view = nullptr;
    const void* state = nullptr;
    const auto refuses = [&](const std::string& name, spillway_status status) {
        CAPTURE(name);
        CHECK(status == SPILLWAY_INVALID_ARGUMENT);
        CHECK_THAT(optimizer.error(), Contains(name + " is NULL"));
    };
    refuses("count", spillway_tensor_count(o, nullptr));
    std::uint32_t tensor = 77;
    refuses("name", spillway_find_tensor(o, nullptr, &tensor));
    refuses("tensor", spillway_find_tensor(o, "bias", nullptr));
    refuses("planes", spillway_state_planes(o, nullptr));
    refuses("name", spillway_io_backend_name(o, nullptr));
    refuses("statistics", spillway_get_statistics(o, nullptr));
    refuses("hyper", spillway_set_group(o, 0, nullptr));
    refuses("data", spillway_rebind(o, 0, nullptr));
    refuses("data", spillway_give_gradient(o, 1, nullptr, c_bias, SPILLWAY_GRADIENT_FP32));
    refuses("rule", spillway_begin_step(o, nullptr, nullptr));
    refuses("finished", spillway_wait_limited(o, 1, nullptr));
    refuses("client_state", spillway_begin_commit(o, 0, nullptr, 1));
    refuses("found", spillway_recover(o, nullptr, &number));
    refuses("iteration", spillway_recover(o, &flag, nullptr));
    refuses("client_state", spillway_recovered_client_state(o, nullptr, &number));
    refuses("client_state_bytes", spillway_recovered_client_state(o, &state, nullptr));
    refuses("steps", spillway_steps(o, 0, nullptr));
    refuses("values", spillway_read_state(o, 0, 0, 0, nullptr, 1));
    refuses("values", spillway_write_state(o, 0, 0, 0, nullptr, 1));
    refuses("values", spillway_read_masters(o, 0, 0, nullptr, 1));
    refuses("values", spillway_read_residue(o, 0, 0, nullptr, 1));
    refuses("values", spillway_write_residue(o, 0, 0, nullptr, 1));
    refuses("values", spillway_state_view(o, 0, 0, nullptr, &number));
    refuses("elements", spillway_state_view(o, 0, 0, &view, nullptr));
    refuses("path", spillway_export_masters(o, nullptr, SPILLWAY_EXPORT_FP32));
    CHECK((number == 77 && flag == 77 && tensor == 77));
    check_still_works(optimizer, arguments);
}

TEST_CASE("what cannot be made is refused by name, and there is no optimizer") {
    COptimizerArguments arguments;
    auto* optimizer = reinterpret_cast<spillway_optimizer*>(&arguments);
    const auto refuses = [&](const std::string& name) {
        CHECK(arguments.create(&optimizer) == SPILLWAY_INVALID_ARGUMENT);
        CHECK(optimizer == nullptr);
        CHECK_THAT(spillway_last_error(nullptr), Contains(name));
    };
    SECTION("a name that is NULL") {
        arguments.parameters[1].name = nullptr;
        refuses("parameters[1].name is NULL");
    }
    SECTION("a name that comes twice") {
        arguments.parameters[1].name = "weight";
        refuses("weight");
    }
    SECTION("a shape that is NULL") {
        arguments.parameters[0].shape = nullptr;
        refuses("parameters[0].shape is NULL");
    }
    SECTION("more dimensions than there can be") {
        arguments.parameters[0].dimensions = ~std::uint64_t{0};
        refuses("dimensions");
    }
    SECTION("a shape that overflows") {
        arguments.weight_shape = {std::uint64_t{1} << 40, std::uint64_t{1} << 40};
        refuses("weight");
    }
    SECTION("data that is NULL") {
        arguments.parameters[0].data = nullptr;
        refuses("weight");
    }
    SECTION("a type that is none") {
        arguments.parameters[1].type = 2;
        refuses("parameters[1].type is 2");
    }
    SECTION("a group that is none") {
        arguments.parameters[1].group = 1;
        refuses("bias");
    }
    SECTION("a learning rate that is none") {
        arguments.groups[0].learning_rate = std::numeric_limits<double>::quiet_NaN();
        refuses("learning_rate");
    }
}

TEST_CASE("sizes, choices and places that cannot be are refused by name") {
    COptimizerArguments arguments;
    auto* optimizer = reinterpret_cast<spillway_optimizer*>(&arguments);
    const auto refuses = [&](const std::string& name,
                             spillway_status expected = SPILLWAY_INVALID_ARGUMENT) {
        CHECK(arguments.create(&optimizer) == expected);
        CHECK(optimizer == nullptr);
        CHECK_THAT(spillway_last_error(nullptr), Contains(name));
    };
    SECTION("a size that is none, of a parameter") {
        arguments.parameters[0].struct_bytes = 3;
        refuses("parameters[0]: struct_bytes is 3");
    }
    SECTION("a size that is none, of a group") {
        arguments.groups[0].struct_bytes = 0;
        refuses("groups[0]: struct_bytes is 0");
    }
    SECTION("a size that is none, of the options") {
        arguments.options.struct_bytes = 1u << 20;
        refuses("options: struct_bytes is 1048576");
    }
    SECTION("an instruction set that is none") {
        arguments.options.isa = -1;
        refuses("options.isa is -1");
    }
    SECTION("a backend that is none") {
        arguments.options.io_backend = 9;
        refuses("options.io_backend is 9; known are 0 to 3");
    }
    SECTION("a format of state that is none") {
        arguments.options.state = 3;
        refuses("options.state is 3; known are 0 to 2");
    }
    SECTION("what is reserved") {
        arguments.options.reserved = 1;
        refuses("options.reserved is 1");
    }
    SECTION("a chunk size that is no multiple of 64 KiB") {
        arguments.options.chunk_bytes = 65537;
        refuses("65537");
    }
    SECTION("no threads") {
        arguments.options.threads = 0;
        refuses("options.threads is 0");
    }
    SECTION("more threads than there can be") {
        arguments.options.threads = std::uint64_t{1} << 32;
        refuses("options.threads is 4294967296");
    }
    SECTION("a queue deeper than there can be") {
        arguments.options.io_depth = ~std::uint64_t{0};
        refuses("options.io_depth is 18446744073709551615");
    }
    SECTION("too little memory") {
        arguments.options.host_bytes = 4096;
        refuses("", SPILLWAY_PLAN_REFUSED);
    }
    SECTION("a drive folder that is not there") {
        const TemporaryFolder folder;
        arguments.commit_to(folder.path() / "run");
        arguments.options.nvme = "/nonexistent/spillway";
        refuses("/nonexistent/spillway", SPILLWAY_FOLDER_REFUSED);
    }
}

TEST_CASE("lists that are NULL or empty are refused by name") {
    const COptimizerArguments a;
    spillway_optimizer* optimizer = nullptr;
    const auto refuses = [](const std::string& text, spillway_status status) {
        CHECK(status == SPILLWAY_INVALID_ARGUMENT);
        CHECK_THAT(spillway_last_error(nullptr), Contains(text));
    };
    const auto* p = a.parameters.data();
    const auto* g = a.groups.data();
    refuses("parameters is NULL",
            spillway_optimizer_create(nullptr, 2, g, 1, &a.options, &optimizer));
    refuses("parameter_count is 0", spillway_optimizer_create(p, 0, g, 1, &a.options, &optimizer));
    refuses("groups is NULL", spillway_optimizer_create(p, 2, nullptr, 1, &a.options, &optimizer));
    refuses("group_count is 0", spillway_optimizer_create(p, 2, g, 0, &a.options, &optimizer));
    refuses("options is NULL", spillway_optimizer_create(p, 2, g, 1, nullptr, &optimizer));
    refuses("optimizer is NULL", spillway_optimizer_create(p, 2, g, 1, &a.options, nullptr));
}

TEST_CASE("numbers out of range are refused and change nothing") {
    COptimizerArguments arguments(SPILLWAY_LION);
    arguments.groups[0].beta1 = 0;
    COptimizer optimizer(arguments);
    auto* o = optimizer.get();
    constexpr auto most = std::numeric_limits<std::uint64_t>::max();
    const auto refuses = [&](const std::string& text, spillway_status status) {
        CAPTURE(text);
        CHECK(status == SPILLWAY_INVALID_ARGUMENT);
        CHECK_THAT(optimizer.error(), Contains(text));
    };
    std::uint64_t number = 0;
    std::uint32_t tensor = 0;
    float* view = nullptr;
    refuses("tensor is 2", spillway_rebind(o, 2, outputs_f32));
    refuses("tensor is 2", spillway_wait_for(o, 2));
    refuses("tensor is 2", spillway_steps(o, 2, &number));
    refuses("tensor is 2", spillway_set_steps(o, 2, 1));
    refuses("tensor is 2", spillway_state_view(o, 2, 0, &view, &number));
    refuses("tensor is 2", spillway_reset_residue(o, 2));
    refuses("tensor is 4294967295",
            spillway_give_gradient(o, ~0u, inputs_f32, 1, SPILLWAY_GRADIENT_FP32));
    refuses("elements is 4; tensor 1 ('bias') has 5",
            spillway_give_gradient(o, 1, inputs_f32, 4, SPILLWAY_GRADIENT_FP32));
    refuses("type is 3", spillway_give_gradient(o, 1, inputs_f32, c_bias, 3));
    refuses("'weight'", spillway_read_state(o, 0, 0, most, outputs_f32, 1));
    refuses("'weight'", spillway_read_state(o, 0, 0, 42, outputs_f32, 1));
    refuses("'weight'", spillway_write_state(o, 0, 0, 1, inputs_f32, most));
    refuses("'bias'", spillway_read_masters(o, 1, 1, outputs_f32, 5));
    refuses("plane", spillway_read_state(o, 1, 1, 0, outputs_f32, 1));
    refuses("plane", spillway_state_view(o, 1, 9, &view, &number));
    refuses("group", spillway_set_group(o, 1, &arguments.groups[0]));
    refuses("name is 'nothing'", spillway_find_tensor(o, "nothing", &tensor));
    refuses("type is 2", spillway_export_masters(o, "x.safetensors", 2));
}

TEST_CASE("a step's rule is checked before anything happens") {
    COptimizerArguments arguments;
    COptimizer optimizer(arguments);
    const std::vector<float> gradient(c_bias, 1.0f);
    REQUIRE(optimizer.give(c_bias_tensor, gradient) == SPILLWAY_OK);
    auto rule = plain_rule();
    spillway_step_report report;
    spillway_step_report_init(&report, sizeof report);
    std::string text;
    SECTION("a rule that is none") {
        rule.nonfinite = 3;
        text = "rule.nonfinite is 3";
    }
    SECTION("a flag that is none") {
        rule.clip = -1;
        text = "rule.clip is -1";
    }
    SECTION("a norm that would not be used") {
        rule.max_norm = 1;
        text = "rule.clip is 0";
    }
    SECTION("a scale that is none") {
        rule.gradient_scale = std::numeric_limits<double>::infinity();
        text = "gradient_scale";
    }
    SECTION("a size that is none, of the rule") {
        rule.struct_bytes = 0;
        text = "rule: struct_bytes";
    }
    SECTION("a size that is none, of the report") {
        report.struct_bytes = 0;
        text = "report: struct_bytes";
    }
    CHECK(optimizer.step(&report, &rule) == SPILLWAY_INVALID_ARGUMENT);
    CHECK_THAT(optimizer.error(), Contains(text));
    CHECK(arguments.bias == std::vector<float>(c_bias, 2.0f));
    check_still_works(optimizer, arguments);
}

TEST_CASE("a forked child is refused, and its parent goes on") {
    COptimizerArguments arguments;
    COptimizer optimizer(arguments);
    check_still_works(optimizer, arguments);
    const auto calls = all_calls(arguments);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        ::alarm(20);  // a child that hangs fails too
        int failed = spillway_optimizer_destroy(optimizer.get()) == SPILLWAY_FORKED_CHILD ? 0 : 1;
        for (const auto& [name, call] : calls)
            failed += call(optimizer.get()) == SPILLWAY_FORKED_CHILD ? 0 : 1;
        const std::string text = spillway_last_error(optimizer.get());
        failed += text.find("forked") == std::string::npos ? 1 : 0;
        ::_exit(failed);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    check_still_works(optimizer, arguments);
}
