// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/element_order.h"

#include <stdexcept>

#include <catch2/catch.hpp>

using namespace spillway::offload;

namespace {

TensorSpec tensor(std::string name, std::vector<std::uint64_t> shape) {
    return {.name = std::move(name), .shape = std::move(shape)};
}

}  // namespace

TEST_CASE("tensors lie in order, each on an edge of 256 elements", "[element_order]") {
    const ElementOrder order(
        {tensor("a", {3, 100}), tensor("b", {256}), tensor("c", {}), tensor("d", {20000})});
    CHECK(order.range(0).begin == 0);
    CHECK(order.range(0).end == 300);
    CHECK(order.range(1).begin == 512);
    CHECK(order.range(1).end == 768);
    CHECK(order.range(2).begin == 768);
    CHECK(order.range(2).size() == 1);
    CHECK(order.range(3).begin == 1024);
    CHECK(order.parameters() == 300 + 256 + 1 + 20000);
    CHECK(order.length() == 1024 + 20224);
    CHECK(order.tiles() == 2);
    CHECK_THROWS_AS(order.range(4), std::out_of_range);
}

TEST_CASE("the tensors of a range are found, padding and empty tensors left out",
          "[element_order]") {
    const ElementOrder order(
        {tensor("a", {300}), tensor("empty", {8, 0}), tensor("b", {256}), tensor("c", {20000})});
    const auto in = [&](std::uint64_t begin, std::uint64_t end) {
        const auto span = order.tensors_in({begin, end});
        return std::pair(span.first, span.last);
    };
    CHECK(in(0, 1) == std::pair(0U, 1U));
    CHECK(in(299, 513) == std::pair(0U, 3U));
    CHECK(in(512, 768) == std::pair(2U, 3U));
    CHECK(in(767, 769) == std::pair(2U, 4U));
    CHECK(in(0, 30000) == std::pair(0U, 4U));
    const auto padding = order.tensors_in({300, 512});
    CHECK(padding.first == padding.last);
    const auto behind = order.tensors_in({30000, 40000});
    CHECK(behind.first == behind.last);
}

TEST_CASE("every element of the order belongs to the tensor that is found for it",
          "[element_order]") {
    const ElementOrder order({tensor("a", {5}), tensor("b", {7}), tensor("c", {1}),
                              tensor("d", {600}), tensor("e", {256})});
    for (std::uint64_t element = 0; element < order.length(); ++element) {
        const auto span = order.tensors_in({element, element + 1});
        bool inside = false;
        for (TensorId id = 0; id < order.tensors().size(); ++id)
            if (order.range(id).begin <= element && element < order.range(id).end) {
                inside = true;
                CHECK(span.first == id);
                CHECK(span.last == id + 1);
            }
        if (!inside)
            CHECK(span.first == span.last);
    }
}

TEST_CASE("a unit reaches from its first tensor to the end of its last", "[element_order]") {
    const ElementOrder order({tensor("a", {300}), tensor("b", {256}), tensor("c", {100})});
    CHECK(unit_range(order, {.first_tensor = 1, .tensor_count = 2}).begin == 512);
    CHECK(unit_range(order, {.first_tensor = 1, .tensor_count = 2}).end == 868);
    CHECK_THROWS_AS(unit_range(order, {.first_tensor = 1, .tensor_count = 0}),
                    std::invalid_argument);
    CHECK_THROWS_AS(unit_range(order, {.first_tensor = 1, .tensor_count = 3}), std::out_of_range);
}

TEST_CASE("lists that make no order are refused by name", "[element_order]") {
    CHECK_THROWS_WITH(ElementOrder({}), Catch::Contains("at least one tensor"));
    CHECK_THROWS_WITH(ElementOrder({tensor("a", {1}), tensor("", {1})}),
                      Catch::Contains("tensor 1"));
    CHECK_THROWS_WITH(ElementOrder({tensor("a", {1}), tensor("a", {2})}), Catch::Contains("'a'"));
    CHECK_THROWS_WITH(ElementOrder({tensor("empty", {0, 5})}), Catch::Contains("empty"));
    const auto huge = std::uint64_t{1} << 40U;
    CHECK_THROWS_WITH(ElementOrder({tensor("big", {huge, huge})}), Catch::Contains("'big'"));
    CHECK_THROWS_AS(ElementOrder({tensor("big", {~std::uint64_t{0}, 2})}), std::invalid_argument);
    CHECK_THROWS_AS(ElementOrder({tensor("a", {std::uint64_t{1} << 56U}), tensor("b", {1})}),
                    std::invalid_argument);
}
