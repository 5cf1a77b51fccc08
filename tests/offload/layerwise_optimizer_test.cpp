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
using cpu_optim::LambHyperParameters;
using cpu_optim::LarsHyperParameters;

namespace {

using Groups = std::vector<cpu_optim::LayerwiseHyperParameters>;

constexpr double gradient_scale = 0.75;

const std::vector<Groups>& every_optimizer() {
    static const std::vector<Groups> all{
        {LambHyperParameters{.learning_rate = 0.1},
         LambHyperParameters{.learning_rate = 0.02, .weight_decay = 0, .most_weight_norm = 3}},
        {LarsHyperParameters{.learning_rate = 5},
         LarsHyperParameters{.learning_rate = 20, .momentum = 0.5, .weight_decay = 0}}};
    return all;
}

/// Chunks of one or two tiles, all on the drive: the model's tensors are smaller, as large, and
/// many times as large.
TensorOptimizerOptions starved(const TemporaryFolder& folder, const Groups& groups,
                               std::size_t chunk_kib = 64) {
    TensorOptimizerOptions options;
    const bool small = chunk_kib == 64 || needs(groups[0]).state_planes == 1;
    options.host_bytes = std::size_t{small ? 6U : 7U} << 20U;
    options.chunk_bytes = chunk_kib << 10U;
    options.nvme = folder.path() / "drive";
    std::filesystem::create_directories(options.nvme);
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

std::vector<std::uint32_t> reference_bits(const Groups& groups, std::uint64_t iterations) {
    auto model = client_model();
    ReferenceOptimizer reference(model, groups);
    for (std::uint64_t iteration = 1; iteration <= iterations; ++iteration)
        reference.step(iteration, gradient_scale);
    return bits_of(model);
}

/// Catch would spell out both in full.
template <typename A, typename B>
std::size_t differences(const A& a, const B& b) {
    std::size_t count = a.size() == b.size() ? 0 : 1;
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
        count += a[i] == b[i] ? 0U : 1U;
    return count;
}

SyntheticRun synthetic(const TemporaryFolder& folder, const Groups& groups, std::uint64_t steps) {
    SyntheticRun run;
    run.out = folder.path() / "out";
    run.nvme = folder.path() / "drive";
    std::filesystem::create_directories(run.nvme);
    run.steps = steps;
    run.layerwise = SyntheticLayerwiseGroups{groups[0], groups[1]};
    return run;
}

SyntheticPlacement starved_training(const std::string& device, std::size_t chunk_kib) {
    SyntheticPlacement placement;
    placement.device = device;
    placement.host_bytes = std::size_t{chunk_kib == 64 ? 20U : 30U} << 20U;
    placement.device_bytes = std::size_t{4} << 20U;
    placement.chunk_bytes = chunk_kib << 10U;
    return placement;
}

}  // namespace

TEST_CASE("layerwise: client tensors have the bits of the reference wherever their state is") {
    constexpr std::uint64_t iterations = 2;
    for (const auto& groups : every_optimizer()) {
        const auto expected = reference_bits(groups, iterations);
        for (const std::size_t chunk_kib : {0U, 64U, 128U}) {
            for (const auto giving : {Giving::before, Giving::streamed}) {
                if (giving == Giving::streamed && chunk_kib == 128)
                    continue;
                const TemporaryFolder folder;
                CAPTURE(optimizer_name(groups[0]), chunk_kib, giving == Giving::streamed);
                auto options = chunk_kib == 0 ? in_memory() : starved(folder, groups, chunk_kib);
                options.threads = 1 + chunk_kib % 3;
                options.isa = chunk_kib == 64 ? cpu_optim::Isa::scalar : cpu_optim::best_isa();
                auto model = client_model();
                TensorOptimizer optimizer(parameters_of(model), groups, options);
                for (std::uint64_t iteration = 1; iteration <= iterations; ++iteration)
                    step(optimizer, model, iteration, giving);
                CHECK(differences(bits_of(model), expected) == 0);
                CHECK(optimizer.statistics().host_bytes <= options.host_bytes);
                CHECK((optimizer.statistics().nvme_read_bytes > 0) == (chunk_kib != 0));
            }
        }
    }
}

TEST_CASE("layerwise: lossy state has the bits of its reference wherever it is") {
    constexpr std::uint64_t iterations = 2;
    // More than the arenas of a small budget hold of it.
    const auto wide_model = [] {
        auto model = client_model();
        ClientTensorValues wide;
        wide.name = "wide";
        wide.shape = {900000};
        wide.fp32.assign(900000, 0.25F);
        model.push_back(std::move(wide));
        return model;
    };
    for (const auto format : {cpu_optim::StateFormat::bf16, cpu_optim::StateFormat::int8}) {
        for (const auto& groups : every_optimizer()) {
            auto reference_model = wide_model();
            ReferenceOptimizer reference(reference_model, groups, format);
            for (std::uint64_t iteration = 1; iteration <= iterations; ++iteration)
                reference.step(iteration, gradient_scale);
            for (const bool on_drive : {false, true}) {
                const TemporaryFolder folder;
                CAPTURE(state_format_name(format), optimizer_name(groups[0]), on_drive);
                auto options = on_drive ? starved(folder, groups) : in_memory();
                if (on_drive)
                    options.host_bytes = std::size_t{5} << 20U;
                options.state = format;
                options.rounding_seed = client_rounding_seed;
                options.threads = on_drive ? 2 : 3;
                options.isa = on_drive ? cpu_optim::Isa::scalar : cpu_optim::best_isa();
                auto model = wide_model();
                TensorOptimizer optimizer(parameters_of(model), groups, options);
                for (std::uint64_t iteration = 1; iteration <= iterations; ++iteration)
                    step(optimizer, model, iteration);
                CHECK(differences(bits_of(model), bits_of(reference_model)) == 0);
                CHECK((optimizer.statistics().nvme_read_bytes > 0) == on_drive);
                for (TensorId tensor = 0; tensor < model.size(); ++tensor) {
                    std::vector<float> values(model[tensor].elements());
                    for (std::size_t plane = 0; plane < optimizer.state_planes(); ++plane) {
                        optimizer.read_state(tensor, plane, 0, values);
                        CHECK(differences(values, reference.layer_state(tensor, plane)) == 0);
                    }
                }
            }
        }
    }
}

TEST_CASE("layerwise: state, counters and weights come back from a commit, in another placement") {
    for (const auto& groups : every_optimizer()) {
        CAPTURE(optimizer_name(groups[0]));
        const TemporaryFolder folder;
        auto options = starved(folder, groups);
        options.host_bytes = std::size_t{8} << 20U;  // tables of commits
        options.out = folder.path() / "out";
        {
            auto model = client_model();
            TensorOptimizer optimizer(parameters_of(model), groups, options);
            step(optimizer, model, 1);
            step(optimizer, model, 2);
            optimizer.begin_commit({2, "second"});
            step(optimizer, model, 3);  // lost
        }
        options.host_bytes = std::size_t{64} << 20U;
        options.chunk_bytes = std::size_t{192} << 10U;
        auto model = client_model();
        auto reference_model = client_model();
        ReferenceOptimizer reference(reference_model, groups);
        TensorOptimizer optimizer(parameters_of(model), groups, options);
        REQUIRE(optimizer.recover().value().iteration == 2);
        for (std::uint64_t iteration = 1; iteration <= 4; ++iteration) {
            reference.step(iteration, gradient_scale);
            if (iteration > 2)
                step(optimizer, model, iteration);
        }
        CHECK(differences(bits_of(model), bits_of(reference_model)) == 0);
        for (TensorId tensor = 0; tensor < model.size(); ++tensor) {
            std::vector<float> values(model[tensor].elements());
            for (std::size_t plane = 0; plane < optimizer.state_planes(); ++plane) {
                optimizer.read_state(tensor, plane, 0, values);
                CHECK(differences(values, reference.layer_state(tensor, plane)) == 0);
            }
        }
    }
}

TEST_CASE("layerwise: chunks on several drives are measured and updated in order all the same") {
    const TemporaryFolder folder;
    const auto& groups = every_optimizer()[0];
    auto options = starved(folder, groups);
    options.host_bytes = std::size_t{7} << 20U;  // each drive has slots of its own
    for (const auto* const name : {"second", "third"}) {
        options.more_nvme.push_back(folder.path() / name);
        std::filesystem::create_directory(options.more_nvme.back());
    }
    auto model = client_model();
    TensorOptimizer optimizer(parameters_of(model), groups, options);
    step(optimizer, model, 1);
    step(optimizer, model, 2);
    CHECK(differences(bits_of(model), reference_bits(groups, 2)) == 0);
    for (const auto& drive : optimizer.statistics().drives)
        CHECK(drive.read_bytes > 0);
}

TEST_CASE("layerwise: a step reads what its plan says, and writes as much as with one pass") {
    auto model = client_model();
    const ElementOrder order([&] {
        std::vector<TensorSpec> specs;
        for (const auto& values : model)
            specs.push_back({values.name, values.shape, values.group, 1});
        return specs;
    }());
    std::vector<ParameterType> types;
    for (const auto& values : model)
        types.push_back(values.type);
    for (const std::size_t chunk_kib : {64U, 128U}) {
        CAPTURE(chunk_kib);
        const TemporaryFolder folder;
        const auto options = starved(folder, every_optimizer()[0], chunk_kib);
        const auto plan = make_tensor_plan(order, types,
                                           {.state_planes = 2,
                                            .passes = 2,
                                            .host_bytes = options.host_bytes,
                                            .nvme = NvmeTier::present,
                                            .chunk_bytes = options.chunk_bytes})
                              .update;
        CHECK(plan.nvme_read_bytes_per_step > plan.nvme_written_bytes_per_step);
        CHECK(plan.nvme_read_bytes_per_step < 2 * plan.nvme_written_bytes_per_step);
        TensorOptimizer optimizer(parameters_of(model), every_optimizer()[0], options);
        // Read ahead of the next step: never more than all slots hold.
        std::uint64_t ahead = 0;
        for (const auto plane : plan.planes)
            ahead += plan.pipeline_slots * plan.chunk_tiles * tile_bytes(plane);
        for (const std::uint64_t iteration : {6U, 12U, 18U})  // every tensor has a gradient
            step(optimizer, model, iteration);
        const auto found = optimizer.statistics();
        CHECK(found.nvme_written_bytes == 3 * plan.nvme_written_bytes_per_step);
        CHECK(found.nvme_read_bytes >= 3 * plan.nvme_read_bytes_per_step);
        CHECK(found.nvme_read_bytes <= 3 * plan.nvme_read_bytes_per_step + ahead);
    }
}

TEST_CASE("layerwise: what is not finite goes into all of its tensor, or is skipped") {
    for (const auto& groups : every_optimizer()) {
        const TemporaryFolder folder;
        auto model = client_model();
        const auto before = bits_of(model);
        TensorOptimizer optimizer(parameters_of(model), groups, starved(folder, groups));
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
}

TEST_CASE("layerwise: what cannot be is refused before anything is made") {
    const TemporaryFolder folder;
    auto model = client_model();
    auto options = starved(folder, every_optimizer()[0]);
    CHECK_THROWS_WITH(
        TensorOptimizer(parameters_of(model),
                        Groups{every_optimizer()[0][0], every_optimizer()[1][0]}, options),
        Catch::Contains("LAMB") && Catch::Contains("LARS"));
    CHECK(std::filesystem::is_empty(options.nvme));
    TensorOptimizer optimizer(parameters_of(model), every_optimizer()[0], options);
    CHECK_THROWS_WITH(optimizer.set_group(0, cpu_optim::AdamHyperParameters{}),
                      Catch::Contains("AdamW") && Catch::Contains("LAMB"));
    CHECK_NOTHROW(optimizer.set_group(1, LambHyperParameters{.learning_rate = 0.5}));
}

TEST_CASE("layerwise: training has the bits of the reference wherever everything is") {
    constexpr std::uint64_t steps = 2;
    for (const auto& groups : every_optimizer()) {
        const auto expected = reference_synthetic(steps, 0.05, {groups[0], groups[1]});
        for (const auto& placement : {SyntheticPlacement{}, starved_training("cpu", 64),
                                      starved_training("sim:64MiB", 192)}) {
            CAPTURE(optimizer_name(groups[0]), placement.device, placement.chunk_bytes);
            const TemporaryFolder folder;
            auto run = synthetic(folder, groups, steps);
            run.placement = placement;
            const auto outcome = run_synthetic(run);
            CHECK(differences(outcome.masters, expected) == 0);
            CHECK(outcome.statistics.host_peak_bytes <= outcome.plan.host_bytes);
            if (placement.chunk_bytes == 64U << 10U)
                CHECK(outcome.plan.nvme_read_bytes_per_step -
                          outcome.plan.nvme_weight_read_bytes_per_step >
                      outcome.plan.nvme_written_bytes_per_step);
        }
    }
}

TEST_CASE("layerwise: training with lossy state has the bits of its reference") {
    constexpr auto format = cpu_optim::StateFormat::int8;
    const auto& groups = every_optimizer()[0];
    const TemporaryFolder folder;
    auto run = synthetic(folder, groups, 2);
    run.placement = starved_training("cpu", 64);
    run.state = format;
    const auto outcome = run_synthetic(run);
    CHECK(differences(outcome.masters,
                      reference_synthetic(2, 0.05, {groups[0], groups[1]}, format)) == 0);
    CHECK(outcome.statistics.nvme_read_bytes > 0);
}

TEST_CASE("layerwise: training goes on from a commit as if it had not been interrupted") {
    const auto& groups = every_optimizer()[0];
    const TemporaryFolder folder;
    auto run = synthetic(folder, groups, 1);
    run.placement = starved_training("cpu", 64);
    run.placement.commit_every = 1;
    static_cast<void>(run_synthetic(run));
    run.steps = 2;
    run.placement.threads = 2;
    const auto outcome = run_synthetic(run);
    CHECK(outcome.resumed_from == 1);
    CHECK(differences(outcome.masters, reference_synthetic(2, 0.05, {groups[0], groups[1]})) == 0);
}

TEST_CASE("layerwise: an update of whole tensors is planned after the norm alone") {
    const auto model = synthetic_model();
    PlanRequest request;
    request.host_bytes = std::size_t{1} << 30U;
    request.device_bytes = std::size_t{64} << 20U;
    request.training_uses = model.uses;
    request.gradient_uses = model.gradient_uses;
    request.passes = 2;
    const ElementOrder order(model.tensors);
    CHECK_NOTHROW(make_plan(order, model.units, request));
    request.timing = UpdateTiming::as_completed;
    CHECK_THROWS_WITH(make_plan(order, model.units, request), Catch::Contains("2 passes"));
    request.timing = UpdateTiming::after_norm;
    request.passes = 4;
    CHECK_THROWS_WITH(make_plan(order, model.units, request), Catch::Contains("4 passes"));
}

TEST_CASE("layerwise: a step that is too long ends the run and says where to go on") {
    const TemporaryFolder folder;
    const LarsHyperParameters far{.learning_rate = 1e38, .trust_coefficient = 1e6};
    auto run = synthetic(folder, {far, far}, 1);
    run.model = synthetic_model(1);
    CHECK_THROWS_WITH(run_synthetic(run), Catch::Contains("times the trust ratio") &&
                                              Catch::Contains("resume from the last commit"));
}
