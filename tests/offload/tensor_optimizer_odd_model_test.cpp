// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <thread>

#include <catch2/catch.hpp>

#include "cpu_optim/isa.h"
#include "tests/offload/tensor_script.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/watchdog.h"

using namespace spillway;
using namespace spillway::offload;
using namespace spillway::testing;
using cpu_optim::AdamHyperParameters;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

TensorOptimizerOptions in_memory(std::size_t host_bytes = 64 * mib) {
    TensorOptimizerOptions options;
    options.host_bytes = host_bytes;
    options.isa = cpu_optim::supported_isas().back();
    return options;
}

Parameter fp32_parameter(std::string name, std::vector<float>& values) {
    return {std::move(name), {values.size()}, ParameterType::fp32, 0, values.data()};
}

/// A line of /proc/self/status, in bytes.
std::size_t memory_line(const std::string& key) {
    std::ifstream status("/proc/self/status");
    std::string word;
    while (status >> word) {
        std::size_t kibibytes = 0;
        if (word == key + ":" && status >> kibibytes)
            return kibibytes << 10U;
    }
    return 0;
}

/// The peak of resident memory counts from here.
void reset_peak() {
    std::ofstream("/proc/self/clear_refs") << "5";
}

}  // namespace

TEST_CASE("models without an element, and names that occur twice, are refused",
          "[tensor_optimizer]") {
    std::vector<float> none;
    std::vector<float> one{1};
    const std::vector<cpu_optim::HyperParameters> groups{AdamHyperParameters{}};
    CHECK_THROWS_WITH(TensorOptimizer({fp32_parameter("a", none), fp32_parameter("b", none)},
                                      groups, in_memory()),
                      Catch::Contains("empty"));
    CHECK_THROWS_WITH(
        TensorOptimizer({fp32_parameter("a", one), fp32_parameter("a", none)}, groups, in_memory()),
        Catch::Contains("two tensors are named 'a'"));
    CHECK_THROWS_WITH(TensorOptimizer({}, groups, in_memory()),
                      Catch::Contains("at least one tensor"));
}

TEST_CASE("any UTF-8 is a name; what is not is refused where it would be stored",
          "[tensor_optimizer]") {
    const TemporaryFolder folder;
    std::vector<float> a{1, 2};
    std::vector<float> b{3};
    const std::vector<cpu_optim::HyperParameters> groups{AdamHyperParameters{}};
    const std::string odd = "größe/\"層\"\n{}\t\\%s";
    auto options = in_memory();
    // Without a folder nothing is stored.
    CHECK_NOTHROW(TensorOptimizer({fp32_parameter("\xff\xfe", a)}, groups, options));
    options.out = folder.path() / "out";
    CHECK_THROWS_WITH(TensorOptimizer({fp32_parameter("\xff\xfe", a)}, groups, options),
                      Catch::Contains("UTF-8"));
    // The refusal left the folder usable.
    {
        TensorOptimizer optimizer({fp32_parameter(odd, a), fp32_parameter("b", b)}, groups,
                                  options);
        optimizer.begin_commit({5, "note"});
        optimizer.wait();
    }
    a = {0, 0};
    TensorOptimizer optimizer({fp32_parameter(odd, a), fp32_parameter("b", b)}, groups, options);
    const auto note = optimizer.recover();
    REQUIRE(note.has_value());
    CHECK(note->iteration == 5);
    CHECK(a == std::vector<float>{1, 2});
}

TEST_CASE("ten thousand tensors of one element, by more threads than there are",
          "[tensor_optimizer]") {
    const TemporaryFolder folder;
    constexpr std::size_t count = 10000;
    std::vector<float> values(count, 1.0f);
    std::vector<float> gradients(count);
    std::vector<Parameter> parameters;
    for (std::size_t i = 0; i < count; ++i) {
        parameters.push_back({"p" + std::to_string(i), {}, ParameterType::fp32, 0, &values[i]});
        gradients[i] = static_cast<float>(i);
    }
    auto options = in_memory(14 * mib);
    options.threads = 1000;
    options.nvme = folder.path();
    options.out = folder.path() / "out";
    const std::vector<cpu_optim::HyperParameters> groups{
        cpu_optim::SgdHyperParameters{.learning_rate = 0.5, .momentum = 0.9}};
    const auto step = [&](TensorOptimizer& optimizer) {
        for (TensorId i = 0; i < count; ++i)
            optimizer.give_gradient(i, {&gradients[i]});
        optimizer.begin_step({});
        optimizer.wait();
    };
    {
        TensorOptimizer optimizer(parameters, groups, options);
        CHECK(optimizer.statistics().host_bytes <= options.host_bytes);
        step(optimizer);
        optimizer.begin_commit({1, ""});
        optimizer.wait();
    }
    std::ranges::fill(values, 0.0f);
    TensorOptimizer optimizer(parameters, groups, options);
    REQUIRE(optimizer.recover().has_value());
    step(optimizer);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < count; ++i) {
        // Momentum: g, then 0.9 g + g.
        const float once = 1.0f - 0.5f * gradients[i];
        const float twice = once - 0.5f * std::fma(0.9f, gradients[i], gradients[i]);
        wrong += std::abs(values[i] - twice) > 1e-5f * std::abs(twice) ? 1u : 0u;
    }
    CHECK(wrong == 0);
    CHECK(optimizer.steps(9999) == 2);
}

TEST_CASE("bits that are no numbers come back from a commit", "[tensor_optimizer]") {
    const TemporaryFolder folder;
    std::vector<float> values;
    for (const std::uint32_t bits : {0x7FC00001u, 0xFFFFFFFFu, 0x7F800000u, 0xFF800000u,
                                     0x7F7FFFFFu, 0x80000000u, 1u, 0x7F800001u})
        values.push_back(std::bit_cast<float>(bits));
    std::vector<std::uint16_t> halves{0x7F80, 0xFF80, 0x7FC1, 0x8000, 0x7F7F, 1};
    const auto parameters = [&](auto& floats, auto& bf16) {
        return std::vector<Parameter>{
            fp32_parameter("floats", floats),
            {"halves", {bf16.size()}, ParameterType::bf16, 0, bf16.data()}};
    };
    auto options = in_memory();
    options.out = folder.path() / "out";
    const std::vector<cpu_optim::HyperParameters> groups{AdamHyperParameters{}};
    {
        TensorOptimizer optimizer(parameters(values, halves), groups, options);
        optimizer.begin_commit({});
        optimizer.wait();
    }
    std::vector<float> values_back(values.size());
    std::vector<std::uint16_t> halves_back(halves.size());
    TensorOptimizer optimizer(parameters(values_back, halves_back), groups, options);
    REQUIRE(optimizer.recover().has_value());
    for (std::size_t i = 0; i < values.size(); ++i)
        CHECK(std::bit_cast<std::uint32_t>(values_back[i]) ==
              std::bit_cast<std::uint32_t>(values[i]));
    CHECK(halves_back == halves);
}

TEST_CASE("gradients come from eight threads while the update before them runs",
          "[tensor_optimizer]") {
    const Watchdog watchdog(std::chrono::seconds(60));
    const TemporaryFolder folder;
    const TensorScript script;
    auto model = script.start();
    auto reference_model = script.start();
    ReferenceOptimizer reference(reference_model, TensorScript::groups());
    auto options = in_memory(7 * mib);
    options.chunk_bytes = 64 << 10;
    options.nvme = folder.path();
    options.threads = 2;
    TensorOptimizer optimizer(parameters_of(model), TensorScript::groups(), options);
    for (std::uint64_t iteration = 1; iteration <= TensorScript::iterations; ++iteration) {
        reference.step(iteration, 1.0);
        std::atomic<TensorId> next{0};
        std::vector<std::thread> givers;
        for (int i = 0; i < 8; ++i)
            givers.emplace_back([&] {
                for (auto tensor = next++; tensor < model.size(); tensor = next++)
                    script.give_gradient(optimizer, tensor, iteration);
            });
        for (auto& giver : givers)
            giver.join();
        optimizer.begin_step({});
    }
    optimizer.wait();
    CHECK((bits_of(model) == bits_of(reference_model)));
}

TEST_CASE("a tensor without elements counts its steps whenever its gradient comes",
          "[tensor_optimizer]") {
    const Watchdog watchdog(std::chrono::seconds(60));
    std::vector<float> values(100000, 1.0f);
    const std::vector<float> gradient(100000, 0.5f);
    std::vector<float> none;
    TensorOptimizer optimizer({fp32_parameter("none", none), fp32_parameter("values", values)},
                              {AdamHyperParameters{}}, in_memory());
    for (std::uint64_t step = 1; step <= 20; ++step) {
        optimizer.begin_streamed_step(1.0);
        optimizer.give_gradient(1, {gradient.data()});
        optimizer.wait_for(1);  // all that there is to update is updated
        optimizer.give_gradient(0, {});
        optimizer.end_gradients();
        CHECK(optimizer.steps(0) == step);
        CHECK(optimizer.steps(1) == step);
    }
}

TEST_CASE("a refused step leaves the gradients as they were given", "[tensor_optimizer]") {
    std::vector<float> a(10, 1.0f);
    std::vector<float> b(10, 1.0f);
    const std::vector<float> gradient(10, 0.5f);
    TensorOptimizer optimizer({fp32_parameter("a", a), fp32_parameter("b", b)},
                              {AdamHyperParameters{}}, in_memory());
    optimizer.give_gradient(0, {gradient.data()});
    CHECK_THROWS_AS(optimizer.begin_step({.gradient_scale = 1e300}), std::invalid_argument);
    CHECK_THROWS_AS(optimizer.begin_step({.gradient_scale = 1e300, .max_norm = 1e200}),
                    std::invalid_argument);
    CHECK_NOTHROW(optimizer.give_gradient(1, {gradient.data()}));
    optimizer.begin_step({});
    optimizer.wait();
    CHECK(optimizer.steps(0) == 1);
    CHECK(optimizer.steps(1) == 1);
    CHECK(a == b);
}

TEST_CASE("a tensor of forty million elements stays within its budget", "[tensor_optimizer]") {
    // Thread stacks, the allocator's and the scheduler's own memory.
    constexpr std::size_t slack = 16 * mib;
    constexpr std::size_t count = 40'000'000;
    const TemporaryFolder folder;
    std::vector<std::uint16_t> weights(count, 0x3F80);
    const std::vector<std::uint16_t> gradient(count, 0x3C00);
    auto options = in_memory(48 * mib);
    options.nvme = folder.path();
    options.threads = 2;
    reset_peak();
    const auto before = memory_line("VmRSS");
    TensorOptimizer optimizer({{"huge", {5000, 8000}, ParameterType::bf16, 0, weights.data()}},
                              {AdamHyperParameters{.learning_rate = 0.01, .weight_decay = 0}},
                              options);
    optimizer.give_gradient(0, {gradient.data(), cpu_optim::GradientType::bf16});
    optimizer.begin_step({.max_norm = 1e9});
    optimizer.wait();
    std::vector<float> masters(count);
    optimizer.read_masters(0, 0, masters);
    CHECK(optimizer.statistics().host_bytes <= options.host_bytes);
    const auto peak = memory_line("VmHWM");
    REQUIRE(before != 0);
    CHECK(peak - before <= optimizer.statistics().host_bytes + count * sizeof(float) + slack);
    CHECK(std::ranges::all_of(weights, [&](auto weight) { return weight == weights.front(); }));
    CHECK(std::ranges::all_of(masters,
                              [](float master) { return std::abs(master - 0.99f) < 1e-5f; }));
}
