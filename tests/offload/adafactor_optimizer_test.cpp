// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "offload/tensor_optimizer.h"
#include "tests/offload/synthetic_training.h"
#include "tests/offload/tensor_model.h"
#include "tests/support/temporary_folder.h"

using namespace spillway;
using namespace spillway::offload;
using namespace spillway::testing;
using cpu_optim::AdafactorHyperParameters;

namespace {

using Groups = std::vector<AdafactorHyperParameters>;

constexpr double gradient_scale = 0.75;

const Groups& groups() {
    static const Groups all{{},
                            {.learning_rate = 0.5,
                             .beta2_decay = -0.5,
                             .clip_threshold = 2,
                             .weight_decay = 0.1,
                             .objective = cpu_optim::Objective::maximise}};
    return all;
}

/// With more residues than an arena holds, so that they may be on a drive.
std::vector<ClientTensorValues> large_model() {
    auto model = matrix_model();
    ClientTensorValues large;
    large.name = "large";
    large.shape = {1100, 1000};
    large.type = ParameterType::bf16;
    large.bf16.assign(1100000, 0x3e80);
    model.push_back(std::move(large));
    return model;
}

/// Residues, the only planes, on the drive.
TensorOptimizerOptions starved(const TemporaryFolder& folder, std::size_t chunk_kib = 64,
                               const std::filesystem::path& out = {}) {
    TensorOptimizerOptions options;
    options.out = out;
    options.chunk_bytes = chunk_kib << 10U;
    options.nvme = folder.path() / "drive";
    std::filesystem::create_directories(options.nvme);
    try {
        auto model = large_model();
        TensorOptimizer::check_room(parameters_of(model), groups(), options);
    } catch (const PlanRefused& refused) {
        options.host_bytes = refused.needed_bytes;
    }
    return options;
}

TensorOptimizerOptions in_memory() {
    TensorOptimizerOptions options;
    options.host_bytes = std::size_t{1} << 30U;
    return options;
}

enum class Giving { before, streamed };

void step(TensorOptimizer& optimizer, const std::vector<ClientTensorValues>& model,
          std::uint64_t iteration, Giving giving = Giving::before) {
    std::vector<std::vector<std::byte>> gradients;
    for (std::size_t index = 0; index < model.size(); ++index)
        gradients.push_back(gradient_bytes_of(model[index], index, iteration));
    if (giving == Giving::streamed)
        optimizer.begin_streamed_step(gradient_scale);
    for (auto tensor = static_cast<TensorId>(model.size()); tensor-- > 0;) {
        if (model[tensor].has_gradient(iteration))
            optimizer.give_gradient(tensor,
                                    {gradients[tensor].data(), model[tensor].gradient_type});
    }
    if (giving == Giving::streamed)
        optimizer.end_gradients();
    else
        static_cast<void>(optimizer.begin_step({.gradient_scale = gradient_scale}));
    optimizer.wait();
}

/// The model after so many steps of the reference, and what it kept.
struct Expected {
    explicit Expected(std::uint64_t iterations) : model(large_model()), reference(model, groups()) {
        for (std::uint64_t iteration = 1; iteration <= iterations; ++iteration)
            reference.step(iteration, gradient_scale);
    }
    std::vector<ClientTensorValues> model;
    ReferenceOptimizer reference;
};

/// Catch would spell out both in full.
template <typename A, typename B>
std::size_t differences(const A& a, const B& b) {
    std::size_t count = a.size() == b.size() ? 0 : 1;
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
        count += a[i] == b[i] ? 0U : 1U;
    return count;
}

void check_same(TensorOptimizer& optimizer, const std::vector<ClientTensorValues>& model,
                const Expected& expected) {
    CHECK(differences(bits_of(model), bits_of(expected.model)) == 0);
    for (TensorId tensor = 0; tensor < model.size(); ++tensor) {
        CAPTURE(model[tensor].name);
        std::vector<float> values(optimizer.factors(tensor));
        optimizer.read_factors(tensor, 0, values);
        CHECK(differences(values, expected.reference.factors(tensor)) == 0);
        std::vector<float> masters(model[tensor].elements());
        optimizer.read_masters(tensor, 0, masters);
        CHECK(differences(masters, expected.reference.masters(tensor)) == 0);
    }
}

SyntheticRun synthetic(const TemporaryFolder& folder, std::uint64_t steps) {
    SyntheticRun run;
    run.model = matrix_model_of(run.model);
    run.out = folder.path() / "out";
    run.nvme = folder.path() / "drive";
    std::filesystem::create_directories(run.nvme);
    run.steps = steps;
    run.adafactor = SyntheticAdafactorGroups{AdafactorHyperParameters{},
                                             AdafactorHyperParameters{.weight_decay = 0.1}};
    return run;
}

SyntheticPlacement starved_training(const std::string& device, std::size_t chunk_kib) {
    SyntheticPlacement placement;
    placement.device = device;
    placement.host_bytes = std::size_t{chunk_kib == 64 ? 30U : 44U} << 20U;
    placement.device_bytes = std::size_t{4} << 20U;
    placement.chunk_bytes = chunk_kib << 10U;
    return placement;
}

}  // namespace

TEST_CASE("adafactor: client tensors have the bits of the reference wherever they are") {
    constexpr std::uint64_t iterations = 3;
    const Expected expected(iterations);
    for (const std::size_t chunk_kib : {0U, 64U, 128U, 192U}) {
        for (const auto giving : {Giving::before, Giving::streamed}) {
            if (giving == Giving::streamed && chunk_kib == 128)
                continue;
            const TemporaryFolder folder;
            CAPTURE(chunk_kib, giving == Giving::streamed);
            auto options = chunk_kib == 0 ? in_memory() : starved(folder, chunk_kib);
            options.threads = 1 + chunk_kib % 3;
            options.isa = chunk_kib == 64 ? cpu_optim::Isa::scalar : cpu_optim::best_isa();
            auto model = large_model();
            TensorOptimizer optimizer(parameters_of(model), groups(), options);
            for (std::uint64_t iteration = 1; iteration <= iterations; ++iteration)
                step(optimizer, model, iteration, giving);
            check_same(optimizer, model, expected);
            CHECK(optimizer.state_planes() == 0);
            CHECK(optimizer.statistics().host_bytes <= options.host_bytes);
            CHECK((optimizer.statistics().nvme_read_bytes > 0) == (chunk_kib != 0));
        }
    }
}

TEST_CASE("adafactor: factors, counters and weights come back from a commit, elsewhere") {
    const TemporaryFolder folder;
    auto options = starved(folder, 64, folder.path() / "out");
    {
        auto model = large_model();
        TensorOptimizer optimizer(parameters_of(model), groups(), options);
        step(optimizer, model, 1);
        step(optimizer, model, 2);
        optimizer.begin_commit({2, "second"});
        step(optimizer, model, 3);  // lost
    }
    options.host_bytes = std::size_t{64} << 20U;
    options.chunk_bytes = std::size_t{192} << 10U;
    auto model = large_model();
    {
        // What is made of it by another optimizer would not know the factors.
        CHECK_THROWS_AS(
            TensorOptimizer(parameters_of(model),
                            {cpu_optim::SgdHyperParameters{}, cpu_optim::SgdHyperParameters{}},
                            options),
            FolderRefused);
    }
    TensorOptimizer optimizer(parameters_of(model), groups(), options);
    REQUIRE(optimizer.recover().value().iteration == 2);
    step(optimizer, model, 3);
    step(optimizer, model, 4);
    check_same(optimizer, model, Expected(4));
}

TEST_CASE("adafactor: factors that were read can be written, and go on as they were") {
    auto model = large_model();
    TensorOptimizer first(parameters_of(model), groups(), in_memory());
    step(first, model, 1);
    step(first, model, 2);
    auto copy = model;
    TensorOptimizer second(parameters_of(copy), groups(), in_memory());
    for (TensorId tensor = 0; tensor < model.size(); ++tensor) {
        std::vector<float> values(first.factors(tensor));
        first.read_factors(tensor, 0, values);
        second.write_factors(tensor, 0, values);
        second.set_steps(tensor, first.steps(tensor));
        if (model[tensor].type == ParameterType::bf16) {
            std::vector<std::int16_t> residues(model[tensor].elements());
            first.read_residue(tensor, 0, residues);
            second.write_residue(tensor, 0, residues);
        }
    }
    step(second, copy, 3);
    check_same(second, copy, Expected(3));
    std::vector<float> some(2);
    CHECK_THROWS_WITH(second.read_factors(0, 399, some), Catch::Contains("400"));
}

TEST_CASE("adafactor: a step reads what its plan says, and its memory is in the plan") {
    const TemporaryFolder folder;
    auto model = large_model();
    const ElementOrder order([&] {
        std::vector<TensorSpec> specs;
        for (const auto& values : model)
            specs.push_back({values.name, values.shape, values.group, 1});
        return specs;
    }());
    std::vector<ParameterType> types;
    for (const auto& values : model)
        types.push_back(values.type);
    const auto options = starved(folder);
    const auto plan = make_tensor_plan(order, types,
                                       {.state_planes = 0,
                                        .passes = 3,
                                        .second_moments = SecondMoments::factored,
                                        .host_bytes = options.host_bytes,
                                        .nvme = NvmeTier::present,
                                        .chunk_bytes = options.chunk_bytes})
                          .update;
    CHECK(plan.nvme_read_bytes_per_step > 2 * plan.nvme_written_bytes_per_step);
    TensorOptimizer optimizer(parameters_of(model), groups(), options);
    const auto ahead =
        plan.pipeline_slots * plan.chunk_tiles * tile_bytes(Plane::residue);  // of the next step
    for (const std::uint64_t iteration : {6U, 12U})  // every tensor has a gradient
        step(optimizer, model, iteration);
    const auto found = optimizer.statistics();
    CHECK(found.nvme_written_bytes == 2 * plan.nvme_written_bytes_per_step);
    CHECK(found.nvme_read_bytes >= 2 * plan.nvme_read_bytes_per_step);
    CHECK(found.nvme_read_bytes <= 2 * plan.nvme_read_bytes_per_step + ahead);
    CHECK(found.host_bytes == plan.host_bytes);
    CHECK(found.state_bytes >= factor_values(order, SecondMoments::factored) * sizeof(float));
}

TEST_CASE("adafactor: what is not finite goes into all of its tensor, or is skipped") {
    auto model = large_model();
    const auto before = bits_of(model);
    TensorOptimizer optimizer(parameters_of(model), groups(), in_memory());
    std::vector<float> bad(model[0].elements(), 1.0F);
    bad[29999] = std::numeric_limits<float>::infinity();
    optimizer.give_gradient(0, {bad.data()});
    CHECK_FALSE(optimizer.begin_step({.nonfinite = NonfiniteRule::skip}).applied);
    optimizer.wait();
    CHECK(differences(bits_of(model), before) == 0);
    optimizer.give_gradient(0, {bad.data()});
    CHECK(optimizer.begin_step({}).applied);
    optimizer.wait();
    CHECK(std::ranges::all_of(model[0].fp32, [](float value) { return std::isnan(value); }));
    CHECK(std::ranges::all_of(model[5].fp32, [](float value) { return std::isfinite(value); }));
}

TEST_CASE("adafactor: lossy state and other optimizers' groups are refused by name") {
    auto model = large_model();
    auto options = in_memory();
    options.state = cpu_optim::StateFormat::int8;
    CHECK_THROWS_WITH(TensorOptimizer(parameters_of(model), groups(), options),
                      Catch::Contains("Adafactor") && Catch::Contains("int8"));
    TensorOptimizer optimizer(parameters_of(model), groups(), in_memory());
    CHECK_THROWS_WITH(optimizer.set_group(0, cpu_optim::LambHyperParameters{}),
                      Catch::Contains("LAMB") && Catch::Contains("Adafactor"));
    CHECK_NOTHROW(optimizer.set_group(1, AdafactorHyperParameters{.learning_rate = 0.5}));
    CHECK_THROWS_WITH(optimizer.set_group(1, AdafactorHyperParameters{.clip_threshold = 0.5}),
                      Catch::Contains("clip_threshold"));
    TensorOptimizer other(parameters_of(model),
                          {cpu_optim::AdamHyperParameters{}, cpu_optim::AdamHyperParameters{}},
                          in_memory());
    CHECK(other.factors(0) == 0);
    CHECK_THROWS_AS(other.read_factors(0, 0, {}), std::logic_error);
}

TEST_CASE("adafactor: training has the bits of the reference, and goes on from a commit") {
    constexpr std::uint64_t steps = 2;
    const auto expected = [&] {
        const TemporaryFolder folder;
        return reference_synthetic(steps, 0.05, *synthetic(folder, steps).adafactor);
    }();
    for (const auto& placement :
         {SyntheticPlacement{}, starved_training("cpu", 64), starved_training("sim:64MiB", 192)}) {
        CAPTURE(placement.device, placement.chunk_bytes);
        const TemporaryFolder folder;
        auto run = synthetic(folder, steps);
        run.placement = placement;
        auto outcome = run_synthetic(run);
        CHECK(differences(outcome.masters, expected) == 0);
        CHECK(outcome.statistics.host_peak_bytes <= outcome.plan.host_bytes);
        std::filesystem::remove_all(run.out);
        run.steps = 1;
        run.placement.commit_every = 1;
        static_cast<void>(run_synthetic(run));
        run.steps = steps;
        run.placement = {};
        run.placement.threads = 2;
        outcome = run_synthetic(run);
        CHECK(outcome.resumed_from == 1);
        CHECK(differences(outcome.masters, expected) == 0);
    }
}
