// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <cmath>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/interop/safetensors_reader.h"
#include "tests/integrations/c_optimizer.h"
#include "tests/support/temporary_folder.h"

using Catch::Matchers::Contains;
using namespace spillway::testing;

namespace {

std::vector<float> gradient_of(std::uint32_t tensor, int step) {
    std::vector<float> gradient(tensor == c_weight_tensor ? c_rows * c_columns : c_bias);
    for (std::size_t i = 0; i < gradient.size(); ++i)
        gradient[i] = std::sin(static_cast<float>(i) + 10.0f * static_cast<float>(step) +
                               100.0f * static_cast<float>(tensor));
    return gradient;
}

void train(COptimizer& optimizer, int from, int to) {
    for (int step = from; step < to; ++step) {
        const auto weight = gradient_of(c_weight_tensor, step);
        const auto bias = gradient_of(c_bias_tensor, step);
        REQUIRE(optimizer.give(c_weight_tensor, weight) == SPILLWAY_OK);
        REQUIRE(optimizer.give(c_bias_tensor, bias) == SPILLWAY_OK);
        REQUIRE(optimizer.step() == SPILLWAY_OK);
    }
}

}  // namespace

TEST_CASE("tensors are found by name and counted") {
    COptimizerArguments arguments(SPILLWAY_ADAMW);
    const COptimizer optimizer(arguments);
    std::uint64_t count = 0;
    std::uint32_t tensor = 77;
    CHECK(spillway_tensor_count(optimizer.get(), &count) == SPILLWAY_OK);
    CHECK(count == 2);
    CHECK(spillway_find_tensor(optimizer.get(), "bias", &tensor) == SPILLWAY_OK);
    CHECK(tensor == c_bias_tensor);
    CHECK(spillway_state_planes(optimizer.get(), &count) == SPILLWAY_OK);
    CHECK(count == 2);
    const char* backend = nullptr;
    CHECK(spillway_io_backend_name(optimizer.get(), &backend) == SPILLWAY_OK);
    CHECK(backend != nullptr);
}

TEST_CASE("a step scales, clips and reports") {
    COptimizerArguments arguments;
    COptimizer optimizer(arguments);
    const std::vector<float> gradient(c_bias, 4.0f);
    REQUIRE(optimizer.give(c_bias_tensor, gradient) == SPILLWAY_OK);
    auto rule = plain_rule();
    rule.gradient_scale = 0.5;
    rule.clip = 1;
    rule.max_norm = 1e9;
    spillway_step_report report;
    spillway_step_report_init(&report, sizeof report);
    REQUIRE(optimizer.step(&report, &rule) == SPILLWAY_OK);
    CHECK(report.applied == 1);
    CHECK(report.has_norm == 1);
    CHECK(report.norm == Approx(2 * std::sqrt(5.0)));
    CHECK(arguments.bias == std::vector<float>(c_bias, 1.0f));
    CHECK(arguments.weight == std::vector<float>(c_rows * c_columns, 1.0f));
    std::uint64_t steps = 77;
    CHECK(spillway_steps(optimizer.get(), c_bias_tensor, &steps) == SPILLWAY_OK);
    CHECK(steps == 1);
    CHECK(spillway_steps(optimizer.get(), c_weight_tensor, &steps) == SPILLWAY_OK);
    CHECK(steps == 0);
}

TEST_CASE("a streamed step with gradients from two threads gives a plain one's bits") {
    COptimizerArguments plain_arguments(SPILLWAY_ADAMW), streamed_arguments(SPILLWAY_ADAMW);
    COptimizer plain(plain_arguments), streamed(streamed_arguments);
    train(plain, 0, 3);
    for (int step = 0; step < 3; ++step) {
        const auto weight = gradient_of(c_weight_tensor, step);
        const auto bias = gradient_of(c_bias_tensor, step);
        REQUIRE(spillway_begin_streamed_step(streamed.get(), 1.0) == SPILLWAY_OK);
        spillway_status from_thread = SPILLWAY_FAILED;
        std::thread other([&] { from_thread = streamed.give(c_bias_tensor, bias); });
        const auto from_here = streamed.give(c_weight_tensor, weight);
        other.join();
        REQUIRE((from_thread == SPILLWAY_OK && from_here == SPILLWAY_OK));
        REQUIRE(spillway_end_gradients(streamed.get()) == SPILLWAY_OK);
        std::int32_t finished = 0;
        while (finished == 0)
            REQUIRE(spillway_wait_limited(streamed.get(), 50, &finished) == SPILLWAY_OK);
    }
    CHECK(streamed_arguments.weight == plain_arguments.weight);
    CHECK(streamed_arguments.bias == plain_arguments.bias);
}

TEST_CASE("a changed group and moved values count from the next step on") {
    COptimizerArguments arguments;
    COptimizer optimizer(arguments);
    auto group = arguments.groups[0];
    group.learning_rate = 0.25;
    REQUIRE(spillway_set_group(optimizer.get(), 0, &group) == SPILLWAY_OK);
    std::vector<float> moved(c_bias, 8.0f);
    REQUIRE(spillway_rebind(optimizer.get(), c_bias_tensor, moved.data()) == SPILLWAY_OK);
    const std::vector<float> gradient(c_bias, 4.0f);
    REQUIRE(optimizer.give(c_bias_tensor, gradient) == SPILLWAY_OK);
    REQUIRE(optimizer.step() == SPILLWAY_OK);
    CHECK(moved == std::vector<float>(c_bias, 7.0f));
    CHECK(arguments.bias == std::vector<float>(c_bias, 2.0f));
}

TEST_CASE("a reopened optimizer goes on to the bits of an uninterrupted one") {
    const TemporaryFolder folder;
    COptimizerArguments straight_arguments(SPILLWAY_ADAMW), arguments(SPILLWAY_ADAMW),
        resumed_arguments(SPILLWAY_ADAMW);
    COptimizer straight(straight_arguments);
    train(straight, 0, 6);
    const std::string own("a\0b", 3);
    arguments.commit_to(folder.path() / "run");
    {
        COptimizer optimizer(arguments);
        std::int32_t found = 77;
        std::uint64_t iteration = 77;
        CHECK(spillway_recover(optimizer.get(), &found, &iteration) == SPILLWAY_OK);
        CHECK((found == 0 && iteration == 77));
        train(optimizer, 0, 4);
        CHECK(spillway_begin_commit(optimizer.get(), 4, own.data(), 65537) ==
              SPILLWAY_INVALID_ARGUMENT);
        CHECK_THAT(optimizer.error(), Contains("client_state_bytes is 65537"));
        REQUIRE(spillway_begin_commit(optimizer.get(), 4, own.data(), own.size()) == SPILLWAY_OK);
        REQUIRE(spillway_wait(optimizer.get()) == SPILLWAY_OK);
        train(optimizer, 4, 5);  // lost: nothing committed it
    }
    resumed_arguments.commit_to(folder.path() / "run");
    resumed_arguments.weight.assign(c_rows * c_columns, 77.0f);
    COptimizer resumed(resumed_arguments);
    std::int32_t found = 0;
    std::uint64_t iteration = 0, bytes = 0;
    const void* state = nullptr;
    REQUIRE(spillway_recover(resumed.get(), &found, &iteration) == SPILLWAY_OK);
    CHECK((found == 1 && iteration == 4));
    REQUIRE(spillway_recovered_client_state(resumed.get(), &state, &bytes) == SPILLWAY_OK);
    CHECK(std::string(static_cast<const char*>(state), bytes) == own);
    train(resumed, 4, 6);
    CHECK(resumed_arguments.weight == straight_arguments.weight);
    CHECK(resumed_arguments.bias == straight_arguments.bias);
}

TEST_CASE("state is read and written where it lies") {
    COptimizerArguments arguments(SPILLWAY_ADAMW);
    COptimizer optimizer(arguments);
    train(optimizer, 0, 2);
    auto* o = optimizer.get();
    std::vector<float> moments(c_bias);
    REQUIRE(spillway_read_state(o, c_bias_tensor, 1, 0, moments.data(), c_bias) == SPILLWAY_OK);
    CHECK(moments[0] > 0);
    const std::vector<float> written{3.0f, 4.0f};
    REQUIRE(spillway_write_state(o, c_bias_tensor, 1, 2, written.data(), 2) == SPILLWAY_OK);
    std::vector<float> again(c_bias);
    REQUIRE(spillway_read_state(o, c_bias_tensor, 1, 0, again.data(), c_bias) == SPILLWAY_OK);
    CHECK(again == std::vector<float>{moments[0], moments[1], 3.0f, 4.0f, moments[4]});
    float* view = nullptr;
    std::uint64_t elements = 0;
    REQUIRE(spillway_state_view(o, c_bias_tensor, 1, &view, &elements) == SPILLWAY_OK);
    REQUIRE(elements == c_bias);
    CHECK(std::vector<float>(view, view + elements) == again);
    REQUIRE(spillway_set_steps(o, c_bias_tensor, 41) == SPILLWAY_OK);
    train(optimizer, 2, 3);
    std::uint64_t steps = 0;
    CHECK(spillway_steps(o, c_bias_tensor, &steps) == SPILLWAY_OK);
    CHECK(steps == 42);
    // What reads nothing needs no memory for it.
    CHECK(spillway_read_state(o, c_bias_tensor, 0, c_bias, nullptr, 0) == SPILLWAY_OK);
}

TEST_CASE("a bf16 weight and its residue are the master") {
    COptimizerArguments arguments;
    std::vector<std::uint16_t> half(c_bias, 0x3F80);  // 1.0
    arguments.parameters[1].type = SPILLWAY_PARAMETER_BF16;
    arguments.parameters[1].data = half.data();
    COptimizer optimizer(arguments);
    auto* o = optimizer.get();
    const std::vector<float> gradient(c_bias, -0x1p-12f);  // below what bf16 can show at 1.0
    REQUIRE(optimizer.give(c_bias_tensor, gradient) == SPILLWAY_OK);
    REQUIRE(optimizer.step() == SPILLWAY_OK);
    CHECK(half == std::vector<std::uint16_t>(c_bias, 0x3F80));
    std::vector<float> masters(c_bias);
    REQUIRE(spillway_read_masters(o, c_bias_tensor, 0, masters.data(), c_bias) == SPILLWAY_OK);
    CHECK(masters == std::vector<float>(c_bias, 1 + 0x1p-13f));
    std::vector<std::int16_t> residue(c_bias);
    REQUIRE(spillway_read_residue(o, c_bias_tensor, 0, residue.data(), c_bias) == SPILLWAY_OK);
    CHECK(residue == std::vector<std::int16_t>(c_bias, 1 << 10));
    residue[0] = 1 << 9;
    REQUIRE(spillway_write_residue(o, c_bias_tensor, 0, residue.data(), 1) == SPILLWAY_OK);
    REQUIRE(spillway_read_masters(o, c_bias_tensor, 0, masters.data(), 2) == SPILLWAY_OK);
    CHECK((masters[0] == 1 + 0x1p-14f && masters[1] == 1 + 0x1p-13f));
    REQUIRE(spillway_reset_residue(o, c_bias_tensor) == SPILLWAY_OK);
    REQUIRE(spillway_read_masters(o, c_bias_tensor, 0, masters.data(), c_bias) == SPILLWAY_OK);
    CHECK(masters == std::vector<float>(c_bias, 1.0f));
}

TEST_CASE("an average of the masters is kept beside the state, and read and written in parts") {
    COptimizerArguments arguments(SPILLWAY_SGD);
    std::vector<float> found(c_bias);
    {
        COptimizer without(arguments);
        CHECK(spillway_read_average(without.get(), c_bias_tensor, 0, found.data(), c_bias) ==
              SPILLWAY_WRONG_ORDER);
    }
    arguments.options.average = "ema:0.5";
    arguments.groups[0].learning_rate = 1;
    COptimizer optimizer(arguments);
    auto* o = optimizer.get();
    const auto first = arguments.bias[0];
    const std::vector<float> gradient(c_bias, 0.25f);
    REQUIRE(optimizer.give(c_bias_tensor, gradient) == SPILLWAY_OK);
    REQUIRE(optimizer.step() == SPILLWAY_OK);
    REQUIRE(spillway_read_average(o, c_bias_tensor, 0, found.data(), c_bias) == SPILLWAY_OK);
    CHECK(found == arguments.bias);
    REQUIRE(optimizer.give(c_bias_tensor, gradient) == SPILLWAY_OK);
    REQUIRE(optimizer.step() == SPILLWAY_OK);
    REQUIRE(spillway_read_average(o, c_bias_tensor, 1, found.data(), 2) == SPILLWAY_OK);
    CHECK(found[0] == first - 0.375f);
    // No update of this tensor, so nothing that its average could have taken up.
    CHECK(spillway_read_average(o, c_weight_tensor, 0, found.data(), 1) == SPILLWAY_WRONG_ORDER);
    found[0] = 7;
    REQUIRE(spillway_write_average(o, c_bias_tensor, 4, found.data(), 1) == SPILLWAY_OK);
    found[0] = 0;
    REQUIRE(spillway_read_average(o, c_bias_tensor, 4, found.data(), 1) == SPILLWAY_OK);
    CHECK(found[0] == 7);
    arguments.options.average = "ema:2";
    spillway_optimizer* refused = nullptr;
    CHECK(arguments.create(&refused) == SPILLWAY_INVALID_ARGUMENT);
    CHECK_THAT(spillway_last_error(nullptr), Contains("options.average") && Contains("ema:2"));
}

TEST_CASE("an export holds every tensor's master") {
    const TemporaryFolder folder;
    COptimizerArguments arguments(SPILLWAY_ADAMW);
    COptimizer optimizer(arguments);
    train(optimizer, 0, 2);
    const auto path = folder.path() / "model.safetensors";
    REQUIRE(spillway_export_masters(optimizer.get(), path.c_str(), SPILLWAY_EXPORT_FP32) ==
            SPILLWAY_OK);
    const spillway::engine::SafetensorsReader file(path);
    REQUIRE(file.tensors().size() == 2);
    const auto* weight = file.find("weight");
    REQUIRE(weight != nullptr);
    CHECK(weight->shape == std::vector<std::uint64_t>{c_rows, c_columns});
    std::vector<float> values(c_rows * c_columns);
    file.read_floats(*weight, 0, values);
    CHECK(values == arguments.weight);

    const auto half_path = folder.path() / "half.safetensors";
    REQUIRE(spillway_export_masters(optimizer.get(), half_path.c_str(), SPILLWAY_EXPORT_BF16) ==
            SPILLWAY_OK);
    const spillway::engine::SafetensorsReader half(half_path);
    const auto* bias = half.find("bias");
    REQUIRE(bias != nullptr);
    CHECK(bias->size_bytes() == 2 * c_bias);
    values.resize(c_bias);
    half.read_floats(*bias, 0, values);
    for (std::size_t i = 0; i < c_bias; ++i)
        CHECK(values[i] == Approx(arguments.bias[i]).epsilon(0x1p-8));

    CHECK(spillway_export_masters(optimizer.get(), "/nonexistent/x.safetensors",
                                  SPILLWAY_EXPORT_FP32) == SPILLWAY_IO_ERROR);
    CHECK_THAT(optimizer.error(), Contains("/nonexistent/x.safetensors"));
    train(optimizer, 2, 3);  // a failed export has hurt nothing
}
