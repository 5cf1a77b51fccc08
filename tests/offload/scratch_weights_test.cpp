// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/scratch_weights.h"

#include <filesystem>
#include <stdexcept>

#include <catch2/catch.hpp>

#include "tests/support/temporary_folder.h"

using namespace spillway;
using namespace spillway::offload;
using spillway::testing::TemporaryFolder;

namespace {

constexpr std::size_t kib = std::size_t{1} << 10;
constexpr std::size_t mib = std::size_t{1} << 20;
constexpr std::uint64_t unit_elements = std::uint64_t{1} << 20;

}  // namespace

TEST_CASE("scratch weights: a pass reads each of them once, whatever the windows and the device") {
    const TemporaryFolder folder;
    std::filesystem::create_directory(folder.path() / "a");
    std::filesystem::create_directory(folder.path() / "b");
    for (const auto* const name : {"cpu", "sim:64MiB"}) {
        for (const bool two : {false, true}) {
            for (const std::size_t window : {1U, 4U, 9U}) {
                CAPTURE(name, two, window);
                const auto device = cuda::make_device(name, 64 * mib);
                const auto compute = device->create_stream("compute");
                ScratchWeightsOptions options{.nvme = {folder.path() / "a"},
                                              .elements = 3 * unit_elements,
                                              .chunk_bytes = 128 * kib,
                                              .windows = {.weight_buffers = window}};
                if (two)
                    options.nvme.push_back(folder.path() / "b");
                ScratchWeights weights(options, *device, *compute);
                const auto needed =
                    ScratchWeights::needed_host_bytes(options, device->memory_kind());
                const auto before = weights.nvme_read_bytes();
                weights.pass();
                weights.pass();
                CHECK(weights.nvme_read_bytes() - before == 2 * options.elements * 4);
                CHECK(weights.host_bytes() <= needed);
                CHECK(device->statistics().peak_bytes <= ScratchWeights::needed_device_bytes());
            }
        }
    }
    CHECK(std::filesystem::is_empty(folder.path() / "a"));
    CHECK(std::filesystem::is_empty(folder.path() / "b"));
}

TEST_CASE("scratch weights: so few that memory would hold them are refused") {
    const TemporaryFolder folder;
    const auto device = cuda::make_device("cpu", 64 * mib);
    const auto compute = device->create_stream("compute");
    CHECK_THROWS_AS(
        ScratchWeights({.nvme = {folder.path()}, .elements = unit_elements, .chunk_bytes = 4 * mib},
                       *device, *compute),
        std::invalid_argument);
}

TEST_CASE("scratch weights: a ragged chunk size is refused as a plan refuses it") {
    CHECK_THROWS_WITH(ScratchWeights::needed_host_bytes(
                          {.nvme = {"/tmp"}, .elements = 3 * unit_elements, .chunk_bytes = 100000},
                          cuda::MemoryKind::host),
                      Catch::Contains("100000"));
}
