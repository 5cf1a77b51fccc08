// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors

// The machine's probe on a CUDA device, on the look-alike of its driver.
#include <catch2/catch.hpp>

#include "engine/measure/probe.h"
#include "tests/cuda/standin_device.h"

namespace spillway::engine {
namespace {

using Catch::Matchers::Contains;

constexpr std::size_t mib = std::size_t{1} << 20;

MachineProfile probe(cuda::Device& device) {
    return probe_machine({.nvme_folders = {},
                          .threads = 1,
                          .isa = cpu_optim::best_isa(),
                          .device = device,
                          .memory_bytes = 4 * mib,
                          .time_limit_s = 0.1});
}

}  // namespace

TEST_CASE("the link of a CUDA device is measured on page-locked memory, and under its identity") {
    standin::Settings settings;
    settings.pageable = standin::Settings::Pageable::violation;
    const auto device = cuda::make_standin_device(5 * mib, settings);
    const auto profile = probe(*device);
    CHECK(profile.to_device_bytes_per_s > 1e6);
    CHECK(profile.to_host_bytes_per_s > 1e6);
    CHECK(profile.key.device == "Stand-in at 0000:00:00.0");
    const auto counts = standin::counts();
    CHECK(counts.copies > 0);
    CHECK(counts.registrations == 0);
    CHECK(counts.allocations == 0);
    for (const auto& violation : standin::violations())
        FAIL_CHECK(violation);
}

TEST_CASE("a link whose memory cannot be page-locked is not measured, with a note") {
    standin::Settings settings;
    settings.page_lock_limit_bytes = mib;
    const auto device = cuda::make_standin_device(5 * mib, settings);
    const auto profile = probe(*device);
    CHECK(profile.to_device_bytes_per_s == 0);
    CHECK(profile.to_host_bytes_per_s == 0);
    REQUIRE_FALSE(profile.notes.empty());
    CHECK_THAT(profile.notes.back(), Contains("the link was not measured") && Contains("memlock"));
    CHECK(standin::counts().copies == 0);
}

}  // namespace spillway::engine
