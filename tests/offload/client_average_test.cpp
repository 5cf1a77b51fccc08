// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
//
// Averages of weights that the client holds, against averages of what the reference's masters are
// after each update of their tensor.
#include <cstring>
#include <stdexcept>

#include <catch2/catch.hpp>

#include "offload/tensor_optimizer.h"
#include "tests/offload/tensor_model.h"
#include "tests/support/temporary_folder.h"

using namespace spillway;
using namespace spillway::offload;
using namespace spillway::testing;
using cpu_optim::StateFormat;

namespace {

constexpr double gradient_scale = 0.75;
constexpr std::uint64_t iterations = 4;

const AverageRule ema{.parameters = cpu_optim::EmaParameters{.decay = 0.75}};
const AverageRule swa{.parameters = cpu_optim::SwaParameters{}, .every = 2};

std::vector<cpu_optim::HyperParameters> groups() {
    using cpu_optim::AdamHyperParameters;
    return {AdamHyperParameters{.learning_rate = 0.01},
            AdamHyperParameters{.learning_rate = 0.005, .weight_decay = 0}};
}

using Averages = std::vector<std::vector<float>>;

struct Expected {
    std::vector<std::uint32_t> weights;
    Averages averages;  ///< empty: of this tensor there is none
};

Expected expected_after(const AverageRule& rule, std::uint64_t last,
                        StateFormat state = StateFormat::fp32) {
    auto model = client_model();
    ReferenceOptimizer reference(model, groups(), state);
    Expected expected;
    expected.averages.resize(model.size());
    std::vector<std::uint64_t> updates(model.size());
    for (std::uint64_t iteration = 1; iteration <= last; ++iteration) {
        reference.step(iteration, gradient_scale);
        for (TensorId tensor = 0; tensor < model.size(); ++tensor) {
            if (!model[tensor].has_gradient(iteration))
                continue;
            const auto coefficients = rule.coefficients(++updates[tensor]);
            const auto& masters = reference.masters(tensor);
            if (!coefficients)
                continue;
            auto& average = expected.averages[tensor];
            average.resize(masters.size());
            for (std::size_t i = 0; i < masters.size(); ++i)
                average[i] = cpu_optim::averaged(*coefficients, average[i], masters[i]);
        }
    }
    expected.weights = bits_of(model);
    return expected;
}

TensorOptimizerOptions roomy(const AverageRule& rule) {
    TensorOptimizerOptions options;
    options.host_bytes = std::size_t{64} << 20;
    options.rounding_seed = client_rounding_seed;
    options.isa = cpu_optim::best_isa();
    options.threads = 2;
    options.average = rule;
    return options;
}

/// Most planes are on the drive.
TensorOptimizerOptions starved(const AverageRule& rule, const std::filesystem::path& drive) {
    auto options = roomy(rule);
    options.host_bytes = std::size_t{7} << 20;
    options.chunk_bytes = std::size_t{64} << 10;
    options.nvme = drive;
    options.isa = cpu_optim::Isa::scalar;
    options.threads = 1;
    std::filesystem::create_directories(drive);
    return options;
}

enum class Giving { before, streamed };

void step(TensorOptimizer& optimizer, const std::vector<ClientTensorValues>& model,
          std::uint64_t iteration, Giving giving = Giving::before) {
    std::vector<std::vector<std::byte>> bytes;
    for (TensorId tensor = 0; tensor < model.size(); ++tensor)
        bytes.push_back(gradient_bytes_of(model[tensor], tensor, iteration));
    if (giving == Giving::streamed)
        optimizer.begin_streamed_step(gradient_scale);
    for (TensorId tensor = 0; tensor < model.size(); ++tensor) {
        if (model[tensor].has_gradient(iteration))
            optimizer.give_gradient(tensor, {bytes[tensor].data(), model[tensor].gradient_type});
    }
    if (giving == Giving::streamed)
        optimizer.end_gradients();
    else
        static_cast<void>(optimizer.begin_step({.gradient_scale = gradient_scale}));
    optimizer.wait();
}

/// Tensors whose average differs from what is expected.
std::size_t differences(TensorOptimizer& optimizer, const Averages& expected) {
    std::size_t count = 0;
    for (TensorId tensor = 0; tensor < expected.size(); ++tensor) {
        if (expected[tensor].empty())
            continue;
        std::vector<float> found(expected[tensor].size());
        optimizer.read_average(tensor, 0, found);
        const bool alike =
            std::memcmp(found.data(), expected[tensor].data(), found.size() * sizeof(float)) == 0;
        count += alike ? 0U : 1U;
    }
    return count;
}

}  // namespace

TEST_CASE("client average: it has the bits of its definition wherever it lies") {
    for (const auto& rule : {ema, swa})
        for (const auto state : {StateFormat::fp32, StateFormat::int8}) {
            const auto expected = expected_after(rule, iterations, state);
            const TemporaryFolder folder;
            for (const auto& made : {roomy(rule), starved(rule, folder.path() / "drive")})
                for (const auto giving : {Giving::before, Giving::streamed}) {
                    CAPTURE(rule.every, state_format_name(state), made.nvme,
                            giving == Giving::streamed);
                    auto options = made;
                    options.state = state;
                    auto model = client_model();
                    TensorOptimizer optimizer(parameters_of(model), groups(), options);
                    for (std::uint64_t iteration = 1; iteration <= iterations; ++iteration)
                        step(optimizer, model, iteration, giving);
                    CHECK((bits_of(model) == expected.weights));
                    CHECK(differences(optimizer, expected.averages) == 0);
                    CHECK(optimizer.statistics().host_bytes <= options.host_bytes);
                    if (state == StateFormat::fp32 && !options.nvme.empty())
                        CHECK(optimizer.statistics().nvme_read_bytes > 0);
                }
        }
}

TEST_CASE("client average: whole tensors' optimizers keep one, too") {
    const TemporaryFolder folder;
    const std::vector<cpu_optim::LayerwiseHyperParameters> lamb{
        cpu_optim::LambHyperParameters{.learning_rate = 0.1}, cpu_optim::LambHyperParameters{}};
    auto options = starved(ema, folder.path() / "drive");
    options.host_bytes = std::size_t{8} << 20;
    auto model = client_model();
    auto reference_model = client_model();
    ReferenceOptimizer reference(reference_model, lamb);
    TensorOptimizer optimizer(parameters_of(model), lamb, options);
    Averages expected(1);
    for (std::uint64_t iteration = 1; iteration <= 2; ++iteration) {
        step(optimizer, model, iteration);
        reference.step(iteration, gradient_scale);
        const auto& masters = reference.masters(0);
        expected[0].resize(masters.size());
        for (std::size_t i = 0; i < masters.size(); ++i)
            expected[0][i] =
                cpu_optim::averaged(*ema.coefficients(iteration), expected[0][i], masters[i]);
    }
    CHECK(differences(optimizer, expected) == 0);
}

TEST_CASE("client average: it comes back from a commit, in another place, and goes on") {
    for (const auto& rule : {ema, swa}) {
        CAPTURE(rule.every);
        const TemporaryFolder folder;
        auto options = starved(rule, folder.path() / "drive");
        options.host_bytes = std::size_t{9} << 20;  // tables of commits
        options.out = folder.path() / "out";
        {
            auto model = client_model();
            TensorOptimizer optimizer(parameters_of(model), groups(), options);
            for (std::uint64_t iteration = 1; iteration <= 3; ++iteration)
                step(optimizer, model, iteration);
            optimizer.begin_commit({3, ""});
            step(optimizer, model, 4);  // lost
        }
        auto without = options;
        without.average.reset();
        auto model = client_model();
        CHECK_THROWS_WITH(TensorOptimizer(parameters_of(model), groups(), without),
                          Catch::Contains("it keeps an average of its weights"));
        auto seldomer = rule;
        seldomer.every = 3;
        for (const auto& other : {rule.every == 1 ? swa : ema, seldomer}) {
            auto otherwise = options;
            otherwise.average = other;
            CHECK_THROWS_WITH(TensorOptimizer(parameters_of(model), groups(), otherwise),
                              Catch::Contains("its average of the weights is") &&
                                  Catch::Contains("fixed when a run is made"));
        }
        options.host_bytes = std::size_t{64} << 20;
        options.chunk_bytes = 0;
        options.nvme = folder.path() / "other drive";
        std::filesystem::create_directory(options.nvme);
        TensorOptimizer optimizer(parameters_of(model), groups(), options);
        REQUIRE(optimizer.recover().value().iteration == 3);
        CHECK(optimizer.statistics().relocated_bytes > 0);
        CHECK(differences(optimizer, expected_after(rule, 3).averages) == 0);
        step(optimizer, model, 4);
        const auto expected = expected_after(rule, 4);
        CHECK((bits_of(model) == expected.weights));
        CHECK(differences(optimizer, expected.averages) == 0);
    }
}

TEST_CASE("client average: an EMA's decay may change when it is resumed") {
    const TemporaryFolder folder;
    auto options = roomy(ema);
    options.out = folder.path() / "out";
    auto model = client_model();
    {
        TensorOptimizer optimizer(parameters_of(model), groups(), options);
        step(optimizer, model, 1);
        optimizer.begin_commit({1, ""});
        optimizer.wait();
    }
    const AverageRule slower{.parameters = cpu_optim::EmaParameters{.decay = 0.875}};
    options.average = slower;
    TensorOptimizer optimizer(parameters_of(model), groups(), options);
    REQUIRE(optimizer.recover().value().iteration == 1);
    auto average = model[0].fp32;
    step(optimizer, model, 2);
    for (std::size_t i = 0; i < average.size(); ++i)
        average[i] = cpu_optim::averaged(*slower.coefficients(2), average[i], model[0].fp32[i]);
    std::vector<float> found(average.size());
    optimizer.read_average(0, 0, found);
    CHECK(found == average);
}

TEST_CASE("client average: one that was written is gone on with, and read in parts") {
    auto model = client_model();
    TensorOptimizer optimizer(parameters_of(model), groups(), roomy(ema));
    std::vector<float> given(model[0].elements(), 0.5F);
    given[17] = -3;
    optimizer.write_average(0, 0, given);
    optimizer.set_steps(0, 1);
    std::vector<float> found(5);
    optimizer.read_average(0, 15, found);
    CHECK(found == std::vector<float>{0.5F, 0.5F, -3.0F, 0.5F, 0.5F});
    step(optimizer, model, 1);
    optimizer.read_average(0, 15, found);
    CHECK(found[2] == cpu_optim::averaged(*ema.coefficients(2), -3.0F, model[0].fp32[17]));
}

TEST_CASE("client average: what cannot be is refused by name") {
    auto model = client_model();
    std::vector<float> values(1);
    auto options = roomy(swa);
    {
        TensorOptimizer optimizer(parameters_of(model), groups(), options);
        step(optimizer, model, 1);
        CHECK_THROWS_WITH(optimizer.read_average(0, 0, values),
                          Catch::Contains("after 1 updates of 'embedding'") &&
                              Catch::Contains("first time after 2"));
        CHECK_THROWS_AS(optimizer.read_average(100, 0, values), std::invalid_argument);
        CHECK_THROWS_AS(optimizer.write_average(0, model[0].elements(), values),
                        std::invalid_argument);
    }
    options.average = AverageRule{.parameters = cpu_optim::EmaParameters{.decay = 1.5}};
    CHECK_THROWS_WITH(TensorOptimizer(parameters_of(model), groups(), options),
                      Catch::Contains("decay"));
    options.average = AverageRule{.parameters = cpu_optim::SwaParameters{}, .every = 0};
    CHECK_THROWS_WITH(TensorOptimizer(parameters_of(model), groups(), options),
                      Catch::Contains("0 updates"));
    options.average.reset();
    TensorOptimizer optimizer(parameters_of(model), groups(), options);
    CHECK_THROWS_WITH(
        optimizer.read_average(0, 0, values),
        Catch::Contains("no average of 'embedding'") && Catch::Contains("option average"));
    CHECK_THROWS_AS(optimizer.write_average(0, 0, values), std::logic_error);
}
