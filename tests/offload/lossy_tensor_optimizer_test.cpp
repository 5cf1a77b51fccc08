// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
//
// State in bf16 and int8 beside weights that the client holds.
#include <algorithm>
#include <fstream>
#include <stdexcept>
#include <string>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "offload/detail/drives/extent_map.h"
#include "offload/tensor_optimizer.h"
#include "tests/offload/tensor_model.h"
#include "tests/support/temporary_folder.h"

using namespace spillway;
using namespace spillway::offload;
using namespace spillway::testing;
using cpu_optim::AdamHyperParameters;
using cpu_optim::HyperParameters;
using cpu_optim::StateFormat;

namespace {

constexpr std::uint64_t iterations = 5;
constexpr double gradient_scale = 0.75;
constexpr std::array lossy_formats{StateFormat::bf16, StateFormat::int8};
constexpr TensorId head = 7;

std::vector<HyperParameters> adam_groups() {
    return {AdamHyperParameters{.learning_rate = 0.01},
            AdamHyperParameters{.learning_rate = 0.005, .weight_decay = 0}};
}

TensorOptimizerOptions roomy(StateFormat state) {
    TensorOptimizerOptions options;
    options.host_bytes = std::size_t{64} << 20;
    options.state = state;
    options.rounding_seed = client_rounding_seed;
    options.isa = cpu_optim::best_isa();
    return options;
}

/// Every plane is on the drive.
TensorOptimizerOptions starved(StateFormat state, const std::filesystem::path& drive) {
    auto options = roomy(state);
    options.host_bytes = std::size_t{5} << 20;
    options.chunk_bytes = std::size_t{64} << 10;
    options.nvme = drive;
    return options;
}

void step(TensorOptimizer& optimizer, const std::vector<ClientTensorValues>& model,
          std::uint64_t iteration) {
    std::vector<std::vector<std::byte>> bytes;
    for (TensorId tensor = 0; tensor < model.size(); ++tensor)
        bytes.push_back(gradient_bytes_of(model[tensor], tensor, iteration));
    for (TensorId tensor = 0; tensor < model.size(); ++tensor) {
        if (model[tensor].has_gradient(iteration))
            optimizer.give_gradient(tensor, {bytes[tensor].data(), model[tensor].gradient_type});
    }
    optimizer.begin_step({.gradient_scale = gradient_scale});
    optimizer.wait();
}

std::vector<std::uint32_t> reference_bits(StateFormat state,
                                          const std::vector<HyperParameters>& groups) {
    auto model = client_model();
    ReferenceOptimizer reference(model, groups, state);
    for (std::uint64_t iteration = 1; iteration <= iterations; ++iteration)
        reference.step(iteration, gradient_scale);
    return bits_of(model);
}

std::vector<float> state_of(TensorOptimizer& optimizer, TensorId tensor, std::size_t plane,
                            std::size_t count) {
    std::vector<float> values(count);
    optimizer.read_state(tensor, plane, 0, values);
    return values;
}

std::filesystem::path extents_file(const std::filesystem::path& folder) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
        if (entry.path().filename() == "extents.0")
            return entry.path();
    }
    return {};
}

}  // namespace

TEST_CASE("lossy_tensor_optimizer: every optimizer has the bits of its reference") {
    using namespace cpu_optim;
    const std::vector<std::vector<HyperParameters>> all{
        adam_groups(),
        {SgdHyperParameters{.learning_rate = 0.1},
         SgdHyperParameters{.learning_rate = 0.1, .momentum = 0.9, .nesterov = Nesterov::on}},
        {AdagradHyperParameters{.initial_accumulator_value = 0.1}, AdagradHyperParameters{}},
        {LionHyperParameters{.weight_decay = 0.1}, LionHyperParameters{}},
        {RmspropHyperParameters{.momentum = 0.9}, RmspropHyperParameters{}},
    };
    const TemporaryFolder drive;
    for (const auto format : lossy_formats) {
        for (const auto& groups : all) {
            CAPTURE(state_format_name(format), optimizer_name(groups.front()));
            const auto expected = reference_bits(format, groups);
            for (auto options : {roomy(format), starved(format, drive.path())}) {
                options.threads = options.nvme.empty() ? 2 : 1;
                auto model = client_model();
                TensorOptimizer optimizer(parameters_of(model), groups, options);
                for (std::uint64_t iteration = 1; iteration <= iterations; ++iteration)
                    step(optimizer, model, iteration);
                CHECK((bits_of(model) == expected));
                CHECK(optimizer.statistics().host_bytes <= options.host_bytes);
            }
        }
    }
}

TEST_CASE("lossy_tensor_optimizer: state is read decoded, part by part, and has no view") {
    const TemporaryFolder drive;
    for (const auto format : lossy_formats) {
        for (const auto& options : {roomy(format), starved(format, drive.path())}) {
            auto model = client_model();
            auto reference_model = client_model();
            ReferenceOptimizer reference(reference_model, adam_groups(), format);
            TensorOptimizer optimizer(parameters_of(model), adam_groups(), options);
            for (std::uint64_t iteration = 1; iteration <= 3; ++iteration) {
                reference.step(iteration, gradient_scale);
                step(optimizer, model, iteration);
            }
            for (TensorId tensor = 0; tensor < model.size(); ++tensor) {
                const auto count = model[tensor].elements();
                for (std::size_t plane = 0; plane < 2; ++plane) {
                    const auto values = state_of(optimizer, tensor, plane, count);
                    CHECK((values == reference.state(tensor, plane)));
                    CHECK(optimizer.state_view(tensor, plane).empty());
                    const auto first = std::min<std::size_t>(count, 77);
                    std::vector<float> middle(count - first);
                    optimizer.read_state(tensor, plane, first, middle);
                    CHECK(std::equal(middle.begin(), middle.end(),
                                     values.begin() + static_cast<std::ptrdiff_t>(first),
                                     values.end()));
                }
            }
        }
    }
}

TEST_CASE("lossy_tensor_optimizer: what was read is written back as it was, and goes on so") {
    const TemporaryFolder drive;
    for (const auto format : lossy_formats) {
        const auto expected = reference_bits(format, adam_groups());
        for (const auto& options : {roomy(format), starved(format, drive.path())}) {
            auto model = client_model();
            TensorOptimizer first(parameters_of(model), adam_groups(), roomy(format));
            for (std::uint64_t iteration = 1; iteration <= 2; ++iteration)
                step(first, model, iteration);
            TensorOptimizer second(parameters_of(model), adam_groups(), options);
            for (TensorId tensor = 0; tensor < model.size(); ++tensor) {
                const auto count = model[tensor].elements();
                const auto cut = count / 2 / 256 * 256;
                for (std::size_t plane = 0; plane < 2; ++plane) {
                    const auto values = state_of(first, tensor, plane, count);
                    second.write_state(tensor, plane, cut, std::span(values).subspan(cut));
                    second.write_state(tensor, plane, 0, std::span(values).first(cut));
                    CHECK((state_of(second, tensor, plane, count) == values));
                }
                if (model[tensor].type == ParameterType::bf16) {
                    std::vector<std::int16_t> residues(count);
                    first.read_residue(tensor, 0, residues);
                    second.write_residue(tensor, 0, residues);
                }
                second.set_steps(tensor, first.steps(tensor));
            }
            for (std::uint64_t iteration = 3; iteration <= iterations; ++iteration)
                step(second, model, iteration);
            CHECK((bits_of(model) == expected));
        }
    }
}

TEST_CASE("lossy_tensor_optimizer: int8 state is written in whole blocks") {
    auto model = client_model();
    const std::vector<float> values(1000, 0.25F);
    TensorOptimizer int8(parameters_of(model), adam_groups(), roomy(StateFormat::int8));
    const auto write = [&](TensorOptimizer& optimizer, std::uint64_t first, std::size_t count) {
        optimizer.write_state(head, 0, first, std::span(values).first(count));
    };
    const auto elements = model[head].elements();
    for (const auto& [first, count] : std::vector<std::pair<std::uint64_t, std::size_t>>{
             {1, 255}, {0, 100}, {256, 300}, {elements - elements % 256, elements % 256 - 1}}) {
        CAPTURE(first, count);
        CHECK_THROWS_AS(write(int8, first, count), std::invalid_argument);
        CHECK_THROWS_WITH(write(int8, first, count),
                          Catch::Contains("'head'") && Catch::Contains("whole blocks of 256"));
    }
    CHECK_NOTHROW(write(int8, 512, 512));
    CHECK_NOTHROW(write(int8, elements - elements % 256, elements % 256));
    CHECK_NOTHROW(write(int8, 3, 0));
    TensorOptimizer bf16(parameters_of(model), adam_groups(), roomy(StateFormat::bf16));
    CHECK_NOTHROW(write(bf16, 1, 99));
}

TEST_CASE("lossy_tensor_optimizer: rules that need exact state are refused by name") {
    auto model = client_model();
    const std::vector<HyperParameters> amsgrad(
        2, AdamHyperParameters{.amsgrad = cpu_optim::Amsgrad::on});
    const std::vector<HyperParameters> centred(
        2, cpu_optim::RmspropHyperParameters{.centred = cpu_optim::Centred::on});
    for (const auto format : lossy_formats) {
        const auto name = std::string(state_format_name(format));
        CHECK_THROWS_WITH(TensorOptimizer(parameters_of(model), amsgrad, roomy(format)),
                          Catch::Contains("AdamW cannot keep its state in " + name));
        CHECK_THROWS_WITH(TensorOptimizer(parameters_of(model), centred, roomy(format)),
                          Catch::Contains("RMSprop cannot keep its state in " + name));
        CHECK_THROWS_WITH(TensorOptimizer::check_room(parameters_of(model), amsgrad, roomy(format)),
                          Catch::Contains("AdamW cannot keep its state in " + name));
        TensorOptimizer optimizer(parameters_of(model), adam_groups(), roomy(format));
        CHECK_THROWS_WITH(optimizer.set_group(0, amsgrad.front()),
                          Catch::Contains("AdamW cannot keep its state in " + name));
        CHECK_NOTHROW(step(optimizer, model, 1));
    }
}

TEST_CASE("lossy_tensor_optimizer: a commit brings state, counters and rounding back") {
    for (const auto format : lossy_formats) {
        const auto expected = reference_bits(format, adam_groups());
        for (const bool on_drive : {false, true}) {
            const TemporaryFolder folder;
            auto options = on_drive ? starved(format, folder.path()) : roomy(format);
            options.host_bytes += std::size_t{8} << 20;  // a commit needs tables and buffers
            options.out = folder.path() / "out";
            {
                auto model = client_model();
                TensorOptimizer optimizer(parameters_of(model), adam_groups(), options);
                for (std::uint64_t iteration = 1; iteration <= 3; ++iteration)
                    step(optimizer, model, iteration);
                optimizer.begin_commit({.iteration = 3, .client_state = ""});
                optimizer.wait();
                step(optimizer, model, 4);  // lost
            }
            options.isa = cpu_optim::Isa::scalar;
            options.chunk_bytes = std::size_t{128} << 10;
            auto model = client_model();
            {
                auto other = options;
                other.state = format == StateFormat::bf16 ? StateFormat::int8 : StateFormat::fp32;
                CHECK_THROWS_WITH(
                    TensorOptimizer(parameters_of(model), adam_groups(), other),
                    Catch::Contains("keeps state in " + std::string(state_format_name(format))));
            }
            TensorOptimizer optimizer(parameters_of(model), adam_groups(), options);
            const auto note = optimizer.recover();
            REQUIRE(note.has_value());
            REQUIRE(note->iteration == 3);
            for (std::uint64_t iteration = 4; iteration <= iterations; ++iteration)
                step(optimizer, model, iteration);
            CHECK((bits_of(model) == expected));
        }
    }
}

TEST_CASE("lossy_tensor_optimizer: damage in every plane of int8 state is met and named") {
    std::vector<TensorSpec> specs;
    for (const auto& values : client_model())
        specs.push_back({values.name, values.shape, values.group, 1});
    const ElementOrder order(specs);
    constexpr std::uint64_t damaged_tile = 21;  // in the middle of `head`
    const auto stored = planes_with_weights(2, StateFormat::int8);
    const detail::ExtentLayout layout(order.tiles(), Durability::on, stored);
    for (const auto plane : {Plane::m_int8, Plane::v_int8, Plane::scales}) {
        CAPTURE(plane_name(plane));
        const TemporaryFolder folder;
        auto options = starved(StateFormat::int8, folder.path());
        options.host_bytes += std::size_t{8} << 20;
        options.out = folder.path() / "out";
        auto model = client_model();
        {
            TensorOptimizer optimizer(parameters_of(model), adam_groups(), options);
            step(optimizer, model, 1);
            optimizer.begin_commit({.iteration = 1, .client_state = ""});
            optimizer.wait();
        }
        for (const unsigned copy : {0u, 1u}) {
            std::fstream file(extents_file(folder.path()),
                              std::ios::in | std::ios::out | std::ios::binary);
            const auto offset = layout.offset_bytes(plane, copy, damaged_tile) + 100;
            file.seekg(static_cast<std::streamoff>(offset));
            const auto byte = file.get();
            file.seekp(static_cast<std::streamoff>(offset));
            file.put(static_cast<char>(byte ^ 1));
        }
        TensorOptimizer optimizer(parameters_of(model), adam_groups(), options);
        const auto go_on = [&] {
            static_cast<void>(optimizer.recover());
            step(optimizer, model, 2);
        };
        CHECK_THROWS_WITH(go_on(), Catch::Contains("tensor 'head'") &&
                                       Catch::Contains(fmt::format("plane {}", plane_name(plane))));
    }
}
