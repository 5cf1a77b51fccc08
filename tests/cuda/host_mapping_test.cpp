// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/host_mapping.h"

#include <cstdint>
#include <system_error>
#include <utility>

#include <catch2/catch.hpp>

using spillway::cuda::HostMapping;
using spillway::cuda::round_up_to_page;

TEST_CASE("sizes are rounded up to whole pages without overflow") {
    CHECK(round_up_to_page(0) == 0);
    CHECK(round_up_to_page(1) == 4096);
    CHECK(round_up_to_page(4096) == 4096);
    CHECK(round_up_to_page(4097) == 8192);
    CHECK(round_up_to_page(SIZE_MAX) == SIZE_MAX - 4095);
}

TEST_CASE("mappings are zeroed, writable and aligned") {
    const std::size_t huge_page = std::size_t{2} << 20;
    const std::size_t bytes = GENERATE(1u, 4096u, 5000u, 2u << 20, (5u << 20) + 1u);
    const HostMapping mapping(bytes);
    REQUIRE(mapping.size_bytes() == round_up_to_page(bytes));
    const std::size_t alignment = bytes < huge_page ? 4096 : huge_page;
    CHECK(reinterpret_cast<std::uintptr_t>(mapping.data()) % alignment == 0);
    CHECK(mapping.data()[mapping.size_bytes() - 1] == std::byte{0});
    mapping.data()[0] = std::byte{1};
    mapping.data()[mapping.size_bytes() - 1] = std::byte{2};
}

TEST_CASE("a moved-from mapping is empty, and an impossible one throws") {
    HostMapping first(4096);
    const auto* data = first.data();
    HostMapping second(std::move(first));
    CHECK(first.data() == nullptr);
    CHECK(second.data() == data);
    HostMapping third(8192);
    third = std::move(second);
    CHECK(third.data() == data);
    CHECK(third.size_bytes() == 4096);
    CHECK_THROWS_AS(HostMapping(SIZE_MAX / 2), std::system_error);
    CHECK_THROWS_AS(HostMapping(SIZE_MAX), std::system_error);
    CHECK(HostMapping(0).data() == nullptr);
}
