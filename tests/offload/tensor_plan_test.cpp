// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/tensor_plan.h"

#include <limits>
#include <optional>

#include <catch2/catch.hpp>

#include "tests/offload/tensor_model.h"
#include "tests/support/temporary_folder.h"

using namespace spillway;
using namespace spillway::offload;
using namespace spillway::testing;
using cpu_optim::HyperParameters;

namespace {

constexpr std::size_t kib = std::size_t{1} << 10;
constexpr std::size_t mib = std::size_t{1} << 20;

struct Shape {
    std::size_t elements;
    ParameterType type;
};

/// A model whose memory is never touched: planning and making an optimizer do not look at it.
std::vector<Parameter> untouched_model(const std::vector<Shape>& shapes) {
    static std::uint32_t memory;
    std::vector<Parameter> parameters;
    for (std::size_t index = 0; index < shapes.size(); ++index)
        parameters.push_back({"t" + std::to_string(index),
                              {shapes[index].elements},
                              shapes[index].type,
                              0,
                              &memory});
    return parameters;
}

/// What a refusal says is needed; nothing if the optimizer could be made.
std::optional<std::size_t> refused_need(const std::vector<Parameter>& parameters,
                                        const std::vector<HyperParameters>& groups,
                                        const TensorOptimizerOptions& options) {
    try {
        const TensorOptimizer optimizer(parameters, groups, options);
        CHECK(optimizer.statistics().host_bytes <= options.host_bytes);
        return std::nullopt;
    } catch (const PlanRefused& refused) {
        CHECK(refused.available_bytes == options.host_bytes);
        return refused.needed_bytes;
    }
}

}  // namespace

TEST_CASE("a refused plan names the smallest budget that works", "[tensor_plan]") {
    const std::vector<std::vector<Shape>> models{
        {{1, ParameterType::fp32}},
        {{100000, ParameterType::fp32}, {70000, ParameterType::bf16}},
        {{3 * mib, ParameterType::bf16}},
        {{2 * mib + 1, ParameterType::fp32}},
        std::vector<Shape>(3000, Shape{1, ParameterType::bf16}),
    };
    const std::vector<std::vector<HyperParameters>> optimizers{
        {cpu_optim::SgdHyperParameters{.learning_rate = 0.1}},
        {cpu_optim::AdamHyperParameters{.amsgrad = cpu_optim::Amsgrad::on}}};
    for (const auto& shapes : models) {
        const auto parameters = untouched_model(shapes);
        for (const auto& groups : optimizers) {
            for (const std::size_t chunk_kib : {0u, 64u, 4096u, 1048576u}) {
                for (const int tiers : {0, 1, 2, 3}) {
                    const TemporaryFolder folder;
                    TensorOptimizerOptions options;
                    options.chunk_bytes = chunk_kib * kib;
                    if ((tiers & 1) != 0)
                        options.nvme = folder.path();
                    const auto with_budget = [&](std::size_t bytes) {
                        options.host_bytes = bytes;
                        if ((tiers & 2) != 0)
                            options.out = folder.path() / ("out" + std::to_string(bytes));
                        return refused_need(parameters, groups, options);
                    };
                    CAPTURE(shapes.size(), shapes[0].elements, groups[0].index(), chunk_kib, tiers);
                    const auto needed = with_budget(1);
                    REQUIRE(needed.has_value());
                    CHECK(with_budget(*needed - 1) == needed);
                    CHECK_FALSE(with_budget(*needed).has_value());
                }
            }
        }
    }
}

TEST_CASE("every budget from the smallest on holds", "[tensor_plan]") {
    const auto parameters = untouched_model({{700000, ParameterType::bf16},
                                             {1, ParameterType::fp32},
                                             {900000, ParameterType::fp32},
                                             {300000, ParameterType::bf16}});
    const std::vector<HyperParameters> groups{cpu_optim::AdamHyperParameters{}};
    for (const std::size_t chunk_kib : {0u, 64u, 192u, 1024u}) {
        const TemporaryFolder folder;
        TensorOptimizerOptions options;
        options.nvme = folder.path();
        options.chunk_bytes = chunk_kib * kib;
        options.host_bytes = 1;
        const auto needed = refused_need(parameters, groups, options);
        REQUIRE(needed.has_value());
        std::uint64_t resident_before = 0;
        for (auto bytes = *needed; bytes < 32 * mib; bytes += 300 * kib + 1) {
            CAPTURE(chunk_kib, bytes);
            options.host_bytes = bytes;
            const TensorOptimizer optimizer(parameters, groups, options);
            const auto statistics = optimizer.statistics();
            CHECK(statistics.host_bytes <= bytes);
            // With a chosen chunk more memory never keeps less.
            if (chunk_kib != 0)
                CHECK(statistics.resident_state_bytes >= resident_before);
            resident_before = statistics.resident_state_bytes;
        }
        CHECK(resident_before != 0);
    }
}

TEST_CASE("a chunk size beyond any memory is as good as the whole model", "[tensor_plan]") {
    const auto parameters = untouched_model({{100000, ParameterType::bf16}});
    TensorOptimizerOptions options;
    options.host_bytes = 64 * mib;
    for (const int shift : {30, 40, 62, 63}) {
        CAPTURE(shift);
        options.chunk_bytes = std::size_t{1} << static_cast<unsigned>(shift);
        CHECK_FALSE(refused_need(parameters, {cpu_optim::AdamHyperParameters{}}, options));
    }
    options.chunk_bytes = std::numeric_limits<std::size_t>::max() / (64 * kib) * (64 * kib);
    CHECK_FALSE(refused_need(parameters, {cpu_optim::AdamHyperParameters{}}, options));
}
