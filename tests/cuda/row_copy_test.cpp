// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/row_copy.h"

#include <vector>

#include <catch2/catch.hpp>

using spillway::cuda::RowCopy;

TEST_CASE("extents reach from the first row to the end of the last") {
    std::byte here{};
    const RowCopy copy{&here, 10, &here, 7, 4, 3};
    CHECK(copy.bytes() == 12);
    CHECK(copy.to_extent_bytes() == 24);
    CHECK(copy.from_extent_bytes() == 18);
    CHECK(RowCopy{&here, 10, &here, 7, 4, 0}.to_extent_bytes() == 0);
    CHECK(RowCopy{&here, 10, &here, 7, 0, 3}.to_extent_bytes() == 0);
}

TEST_CASE("rows are copied and the gaps between them left alone") {
    std::vector<std::byte> from(30);
    for (std::size_t i = 0; i < from.size(); ++i)
        from[i] = static_cast<std::byte>(i);
    std::vector<std::byte> to(30, std::byte{0xFF});
    const RowCopy copy{to.data(), 5, from.data(), 7, 3, 4};
    copy.check("test");
    copy.execute();
    for (std::size_t i = 0; i < to.size(); ++i) {
        const bool in_row = i / 5 < 4 && i % 5 < 3;
        const auto expected = in_row ? from[i / 5 * 7 + i % 5] : std::byte{0xFF};
        CHECK(to[i] == expected);
    }
}

TEST_CASE("overlapping rows, overflow and null pointers are refused") {
    std::byte here{};
    const auto check = [](const RowCopy& copy) { copy.check("copy_rows"); };
    CHECK_THROWS_WITH(check({&here, 3, &here, 4, 4, 2}),
                      Catch::Contains("copy_rows") && Catch::Contains("destination overlap") &&
                          Catch::Contains("4 bytes long and 3 bytes apart"));
    CHECK_THROWS_WITH(check({&here, 4, &here, 3, 4, 2}), Catch::Contains("source overlap"));
    CHECK_THROWS_WITH(check({nullptr, 4, &here, 4, 4, 2}), Catch::Contains("destination is null"));
    CHECK_THROWS_WITH(check({&here, 4, nullptr, 4, 4, 2}), Catch::Contains("source is null"));
    CHECK_THROWS_WITH(check({&here, SIZE_MAX / 4, &here, SIZE_MAX / 4, 4, 5}),
                      Catch::Contains("address space"));
    CHECK_THROWS_WITH(check({&here, SIZE_MAX, &here, SIZE_MAX, SIZE_MAX, 1}),
                      Catch::Contains("address space"));
    CHECK_NOTHROW(check({&here, 0, &here, 0, 4, 1}));
    CHECK_NOTHROW(check({nullptr, 0, nullptr, 0, 0, 5}));
}
