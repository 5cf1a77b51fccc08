// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/link_bench.h"

#include <stdexcept>

#include <catch2/catch.hpp>

#include "tests/cuda/standin_device.h"

using namespace spillway::cuda;
namespace standin = spillway::standin;

namespace {

LinkBenchOptions small() {
    return {.bytes = 40000, .blocks = {4096, 40000}, .passes = 3};
}

const LinkBenchRow& row_of(const LinkBenchResult& result, LinkTraffic traffic,
                           std::size_t block_bytes) {
    for (const auto& row : result.rows)
        if (row.traffic == traffic && row.block_bytes == block_bytes)
            return row;
    throw std::logic_error("no such row");
}

}  // namespace

TEST_CASE("a link of a known rate is measured each way and both ways") {
    // 1 ms a pass: slow enough for what the host adds to be little.
    const auto device = make_device("sim:1MiB@40MB/s", 0);
    const auto result = measure_link(*device, small());
    REQUIRE(result.rows.size() == 6);
    CHECK(result.verified_bytes == 80000);
    CHECK_FALSE(result.interrupted);
    for (const auto& row : result.rows) {
        const bool both = row.traffic == LinkTraffic::both_ways;
        CHECK(row.pages == HostPages::pageable);
        CHECK(row.least_bytes_per_s <= row.bytes_per_s);
        CHECK(row.bytes_per_s <= row.most_bytes_per_s);
        // Never faster than the link is.
        CHECK(row.bytes_per_s <= (both ? 80e6 : 40e6) * 1.01);
    }
    CHECK(row_of(result, LinkTraffic::both_ways, 40000).most_bytes_per_s >
          row_of(result, LinkTraffic::host_to_device, 40000).least_bytes_per_s);
}

TEST_CASE("where page-locking helps, both kinds of memory are measured, and nothing is left") {
    standin::Settings settings;
    settings.max_delay_s = 20e-6;
    const auto device = make_standin_device(std::size_t{1} << 20, settings);
    const auto result = measure_link(*device, small());
    REQUIRE(result.rows.size() == 12);
    CHECK(result.rows.front().pages == HostPages::pageable);
    CHECK(result.rows.back().pages == HostPages::locked);
    CHECK(result.verified_bytes == 160000);
    CHECK(standin::counts().registrations == 0);
    CHECK(standin::counts().allocations == 0);
    for (const auto& violation : standin::violations())
        FAIL_CHECK(violation);
}

TEST_CASE("what cannot be measured is refused by name, and a stop is heard") {
    const auto host = make_device("cpu", std::size_t{1} << 20);
    CHECK_THROWS_WITH(measure_link(*host, small()), Catch::Contains("no link to measure"));
    const auto device = make_device("sim:64KiB", 0);
    CHECK_THROWS_AS(measure_link(*device, small()), OutOfDeviceMemory);
    auto options = small();
    options.blocks = {40001};
    CHECK_THROWS_WITH(measure_link(*device, options), Catch::Contains("40001"));
    options.blocks = {};
    CHECK_THROWS_AS(measure_link(*device, options), std::invalid_argument);
    options = small();
    options.bytes = 8192;
    options.blocks = {4096};
    int asked = 0;
    options.stop = [&] { return ++asked == 2; };
    const auto result = measure_link(*device, options);
    CHECK(result.interrupted);
    CHECK(result.rows.size() == 1);
    CHECK(result.verified_bytes == 0);
}
