// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/compute/compute_pool.h"

#include <atomic>
#include <stdexcept>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/compute/slots.h"

namespace spillway::engine {

TEST_CASE("compute_pool: every index runs exactly once") {
    for (const std::size_t threads : {1u, 2u, 3u}) {
        ComputePool pool(threads, cpu_optim::Isa::scalar);
        CHECK(pool.threads() == threads);
        CHECK(pool.isa() == cpu_optim::Isa::scalar);
        for (const std::size_t count : {0u, 1u, 2u, 1000u}) {
            std::vector<std::atomic<int>> runs(count);
            pool.for_each(count, [&](std::size_t i) { ++runs[i]; });
            for (const auto& run : runs)
                CHECK(run == 1);
        }
    }
}

TEST_CASE("compute_pool: no two bodies share a slot at a time") {
    ComputePool pool(2, cpu_optim::Isa::scalar);
    std::vector<std::atomic<int>> busy(pool.threads());
    std::vector<std::atomic<int>> runs(500);
    std::atomic<int> clashes{0};
    for_each_in_slots(pool, runs.size(), [&](std::size_t i, std::size_t slot) {
        if (busy.at(slot).fetch_add(1) != 0)
            ++clashes;
        ++runs[i];
        --busy[slot];
    });
    CHECK(clashes == 0);
    for (const auto& run : runs)
        CHECK(run == 1);
}

TEST_CASE("compute_pool: an exception of a body reaches the caller and leaves the pool usable") {
    ComputePool pool(2, cpu_optim::Isa::scalar);
    CHECK_THROWS_AS(pool.for_each(100,
                                  [](std::size_t i) {
                                      if (i == 57)
                                          throw std::runtime_error("57");
                                  }),
                    std::runtime_error);
    std::atomic<int> runs{0};
    pool.for_each(100, [&](std::size_t) { ++runs; });
    CHECK(runs == 100);
}

TEST_CASE("compute_pool: no threads are refused") {
    CHECK_THROWS_AS(ComputePool(0, cpu_optim::Isa::scalar), std::invalid_argument);
}

}  // namespace spillway::engine
