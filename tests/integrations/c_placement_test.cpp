// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "nvme/io_backend.h"
#include "tests/integrations/c_optimizer.h"
#include "tests/support/temporary_folder.h"

using namespace spillway::testing;

namespace {

enum class Stepping { plain, streamed };

/// By spillway_io_backend.
const std::array<std::string, 4> names_of_backends{"auto", "io_uring", "threads", "libaio"};

struct Placement {
    std::uint64_t host_bytes = std::uint64_t{64} << 20;
    std::uint64_t chunk_bytes = 0;
    std::uint64_t threads = 1;
    spillway_isa isa = SPILLWAY_ISA_AUTO;
    spillway_io_backend io_backend = SPILLWAY_IO_AUTO;
    Stepping stepping = Stepping::plain;
};

/// A long tensor, an odd one and one of bf16: more state than the small budgets have room for.
struct Weights {
    std::vector<float> large = std::vector<float>(1'000'003, 0.25f);
    std::vector<float> odd = std::vector<float>(777, -0.5f);
    std::vector<std::uint16_t> half = std::vector<std::uint16_t>(300'000, 0x3F80);
    friend bool operator==(const Weights&, const Weights&) = default;
};

std::vector<float> gradient_of(std::size_t elements, int step) {
    std::vector<float> gradient(elements);
    for (std::size_t i = 0; i < elements; ++i) {
        const auto hash = (i + 1) * 2654435761u + static_cast<std::size_t>(step) * 40503u;
        gradient[i] = static_cast<float>(hash % 2003) / 1000.0f - 1.0f;
    }
    return gradient;
}

struct Outcome {
    Weights weights;
    std::vector<float> masters;  ///< of the bf16 tensor
    std::uint64_t drive_bytes = 0;
};

std::array<spillway_parameter, 3> parameters_over(Weights& weights) {
    static constexpr std::array<std::uint64_t, 3> shapes{1'000'003, 777, 300'000};
    static constexpr std::array<const char*, 3> names{"large", "odd", "half"};
    const std::array<void*, 3> data{weights.large.data(), weights.odd.data(), weights.half.data()};
    std::array<spillway_parameter, 3> parameters{};
    for (std::size_t i = 0; i < 3; ++i) {
        REQUIRE(spillway_parameter_init(&parameters[i], sizeof parameters[i]) == SPILLWAY_OK);
        parameters[i].name = names[i];
        parameters[i].shape = &shapes[i];
        parameters[i].dimensions = 1;
        parameters[i].data = data[i];
    }
    parameters[2].type = SPILLWAY_PARAMETER_BF16;
    return parameters;
}

void step_once(spillway_optimizer* optimizer, Stepping stepping, int step) {
    const std::array gradients{gradient_of(1'000'003, step), gradient_of(777, step + 7),
                               gradient_of(300'000, step + 9)};
    if (stepping == Stepping::streamed)
        REQUIRE(spillway_begin_streamed_step(optimizer, 0.5) == SPILLWAY_OK);
    for (const std::uint32_t tensor : {2u, 0u, 1u})
        REQUIRE(spillway_give_gradient(optimizer, tensor, gradients[tensor].data(),
                                       gradients[tensor].size(),
                                       SPILLWAY_GRADIENT_FP32) == SPILLWAY_OK);
    if (stepping == Stepping::streamed) {
        REQUIRE(spillway_end_gradients(optimizer) == SPILLWAY_OK);
    } else {
        auto rule = plain_rule();
        rule.gradient_scale = 0.5;
        REQUIRE(spillway_begin_step(optimizer, &rule, nullptr) == SPILLWAY_OK);
    }
    REQUIRE(spillway_wait(optimizer) == SPILLWAY_OK);
}

Outcome run(const Placement& placement) {
    const TemporaryFolder folder;
    const auto nvme = folder.path().string();
    Outcome outcome;
    const auto parameters = parameters_over(outcome.weights);
    spillway_group group;
    REQUIRE(spillway_group_init(&group, sizeof group, SPILLWAY_ADAMW) == SPILLWAY_OK);
    spillway_options options;
    REQUIRE(spillway_options_init(&options, sizeof options) == SPILLWAY_OK);
    options.nvme = nvme.c_str();
    options.host_bytes = placement.host_bytes;
    options.chunk_bytes = placement.chunk_bytes;
    options.threads = placement.threads;
    options.isa = placement.isa;
    options.io_backend = placement.io_backend;
    spillway_optimizer* optimizer = nullptr;
    const auto status = spillway_optimizer_create(parameters.data(), parameters.size(), &group, 1,
                                                  &options, &optimizer);
    INFO(spillway_last_error(nullptr));
    REQUIRE(status == SPILLWAY_OK);
    const char* backend = nullptr;
    REQUIRE(spillway_io_backend_name(optimizer, &backend) == SPILLWAY_OK);
    if (placement.io_backend != SPILLWAY_IO_AUTO)
        CHECK(backend == names_of_backends[static_cast<std::size_t>(placement.io_backend)]);
    for (int step = 0; step < 3; ++step)
        step_once(optimizer, placement.stepping, step);
    outcome.masters.resize(outcome.weights.half.size());
    REQUIRE(spillway_read_masters(optimizer, 2, 0, outcome.masters.data(),
                                  outcome.masters.size()) == SPILLWAY_OK);
    spillway_statistics statistics;
    REQUIRE(spillway_statistics_init(&statistics, sizeof statistics) == SPILLWAY_OK);
    REQUIRE(spillway_get_statistics(optimizer, &statistics) == SPILLWAY_OK);
    CHECK(statistics.host_bytes <= placement.host_bytes);
    outcome.drive_bytes = statistics.state_bytes - statistics.resident_state_bytes;
    CHECK(statistics.nvme_written_bytes >= 3 * outcome.drive_bytes);
    CHECK(spillway_optimizer_destroy(optimizer) == SPILLWAY_OK);
    return outcome;
}

}  // namespace

TEST_CASE("where state lies and how a step is made changes no bit") {
    const auto in_memory = run({});
    CHECK(in_memory.drive_bytes == 0);
    CHECK_FALSE((in_memory.weights == Weights{}));
    constexpr std::uint64_t little = std::uint64_t{8} << 20;
    std::vector<Placement> placements{
        {.host_bytes = little},
        {.host_bytes = little, .chunk_bytes = 65536, .threads = 3, .isa = SPILLWAY_ISA_SCALAR},
        {.host_bytes = little, .io_backend = SPILLWAY_IO_THREADS, .stepping = Stepping::streamed},
        {.threads = 2, .stepping = Stepping::streamed},
    };
    if (spillway::nvme::libaio_refusal().empty())
        placements.push_back({.host_bytes = little, .io_backend = SPILLWAY_IO_LIBAIO});
    for (std::size_t i = 0; i < placements.size(); ++i) {
        CAPTURE(i);
        const auto outcome = run(placements[i]);
        CHECK((outcome.drive_bytes > 0) == (placements[i].host_bytes == little));
        // Not by CHECK's own comparison: it would print a million values.
        CHECK((outcome.weights == in_memory.weights));
        CHECK((outcome.masters == in_memory.masters));
    }
}
