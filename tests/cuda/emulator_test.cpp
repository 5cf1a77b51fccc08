// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "tests/support/cuda_standin/emulator.h"

#include <numeric>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/support/cuda_standin/order_checker.h"

using namespace spillway::standin;

namespace {

constexpr std::uint32_t all_lanes = 0xFFFFFFFFu;

unsigned global_index() {
    return block_index().x * block_dimension().x + thread_index().x;
}

}  // namespace

TEST_CASE("every thread of every block runs once, with its own indices") {
    const auto kind = GENERATE(Threads::independent, Threads::cooperating);
    std::vector<int> seen(3 * 70, 0);
    run_grid("count", {3, 70, 0, kind}, [&] {
        CHECK(grid_dimension().x == 3);
        ++seen[global_index()];
    });
    CHECK(seen == std::vector<int>(seen.size(), 1));
}

TEST_CASE("nobody passes a barrier before all have come") {
    std::vector<unsigned> sums(2 * 96, 0);
    run_grid("reverse", {2, 96, 96 * sizeof(unsigned), Threads::cooperating}, [&] {
        auto* const shared = reinterpret_cast<unsigned*>(shared_memory());
        const unsigned i = thread_index().x;
        shared[i] = global_index();
        block_barrier();
        const unsigned other = shared[95 - i];
        block_barrier();
        shared[i] = other * 2;
        block_barrier();
        sums[global_index()] = shared[(i + 1) % 96];
    });
    for (unsigned block = 0; block < 2; ++block)
        for (unsigned i = 0; i < 96; ++i)
            REQUIRE(sums[block * 96 + i] == 2 * (block * 96 + 95 - (i + 1) % 96));
}

TEST_CASE("shared memory holds poison when a block begins") {
    int poisoned = 0;
    run_grid("poison", {2, 1, 16, Threads::independent}, [&] {
        for (int i = 0; i < 16; ++i)
            poisoned += shared_memory()[i] == std::byte{0xDB} ? 1 : 0;
        shared_memory()[0] = std::byte{0};
    });
    CHECK(poisoned == 32);
}

TEST_CASE("lanes of a warp exchange values, warp by warp") {
    std::vector<unsigned> sums(64, 0);
    run_grid("sum", {1, 64, 0, Threads::cooperating}, [&] {
        const unsigned lane = thread_index().x % warp_lanes;
        unsigned value = thread_index().x;
        for (unsigned with = warp_lanes / 2; with > 0; with /= 2) {
            unsigned other = value;
            exchange_in_warp(all_lanes, &other, sizeof(other), lane ^ with);
            value += other;
        }
        sums[thread_index().x] = value;
    });
    for (unsigned i = 0; i < 64; ++i)
        REQUIRE(sums[i] == (i < 32 ? 31 * 32 / 2 : 31 * 32 / 2 + 32 * 32));
}

TEST_CASE("threads that wait for ever are named instead of hanging") {
    CHECK_THROWS_WITH(run_grid("stuck", {1, 64, 0, Threads::cooperating},
                               [] {
                                   unsigned value = 1;
                                   if (thread_index().x != 40)
                                       exchange_in_warp(all_lanes, &value, sizeof(value), 0);
                               }),
                      Catch::Contains("'stuck'") && Catch::Contains("thread 32"));
    CHECK_THROWS_WITH(run_grid("alone", {1, 2, 0, Threads::independent}, [] { block_barrier(); }),
                      Catch::Contains("'alone'") && Catch::Contains("independent"));
}

TEST_CASE("uses of memory conflict unless something orders them") {
    using Access = OrderChecker::Access;
    OrderChecker order;
    CHECK(order.operation(1, "first", {{100, 200, Access::writes}}).empty());
    SECTION("another stream races") {
        const auto races = order.operation(2, "second", {{150, 160, Access::reads}});
        REQUIRE(races.size() == 1);
        CHECK_THAT(races.front(), Catch::Contains("second reads memory that first writes"));
    }
    SECTION("the same stream does not") {
        CHECK(order.operation(1, "second", {{150, 160, Access::reads}}).empty());
    }
    SECTION("other memory does not") {
        CHECK(order.operation(2, "second", {{200, 300, Access::writes}}).empty());
    }
    SECTION("an event orders, also over a third stream") {
        order.learn(2, order.knowledge(1));
        CHECK(order.operation(2, "second", {{100, 200, Access::reads}}).empty());
        order.learn(3, order.knowledge(2));
        CHECK(order.operation(3, "third", {{100, 200, Access::writes}}).empty());
        CHECK(order.operation(1, "fourth", {{100, 200, Access::reads}}).size() == 1);
    }
    SECTION("an event from before does not") {
        const auto before = order.knowledge(1);
        CHECK(order.operation(1, "later", {{100, 200, Access::writes}}).empty());
        order.learn(2, before);
        CHECK(order.operation(2, "second", {{100, 200, Access::reads}}).size() == 1);
    }
    SECTION("the host orders what it queues behind what it waited for") {
        CHECK(order.unfinished(100, 200).size() == 1);
        CHECK(order.operation(OrderChecker::host, "the host", {{100, 101, Access::reads}}).size() ==
              1);
        order.learn(OrderChecker::host, order.knowledge(1));
        CHECK(order.unfinished(100, 200).empty());
        CHECK(order.operation(2, "second", {{100, 200, Access::writes}}).empty());
    }
    SECTION("two readers do not conflict, a writer behind both needs both") {
        order.learn(2, order.knowledge(1));
        CHECK(order.operation(1, "reader", {{100, 200, Access::reads}}).empty());
        CHECK(order.operation(2, "other", {{100, 200, Access::reads}}).empty());
        order.learn(3, order.knowledge(2));
        CHECK(order.operation(3, "writer", {{100, 200, Access::writes}}).size() == 1);
    }
}
