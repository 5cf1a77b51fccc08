// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/placement/spread_order.h"

#include <algorithm>

#include <catch2/catch.hpp>

using spillway::offload::detail::spread_order;

TEST_CASE("a spread order holds everything once") {
    for (std::uint64_t count = 0; count <= 130; ++count) {
        CAPTURE(count);
        auto order = spread_order(count);
        REQUIRE(order.size() == count);
        std::sort(order.begin(), order.end());
        for (std::uint64_t i = 0; i < count; ++i)
            REQUIRE(order[i] == i);
    }
}

TEST_CASE("the beginnings of a spread order leave no large gap") {
    for (const std::uint64_t count : {16U, 64U, 100U, 1000U, 1024U}) {
        const auto order = spread_order(count);
        for (std::uint64_t taken = 2; taken <= count; ++taken) {
            CAPTURE(count, taken);
            auto beginning = std::vector(order.begin(), order.begin() + static_cast<long>(taken));
            std::sort(beginning.begin(), beginning.end());
            std::uint64_t largest_gap = count - beginning.back() + beginning.front();
            for (std::uint64_t i = 1; i < taken; ++i)
                largest_gap = std::max(largest_gap, beginning[i] - beginning[i - 1]);
            // Twice the even gap of the power of two above `count`, for the one of `taken` below.
            CHECK(largest_gap * taken <= 4 * count);
        }
    }
}
