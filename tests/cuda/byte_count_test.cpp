// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/byte_count.h"

#include <catch2/catch.hpp>

using spillway::cuda::format_byte_count;
using spillway::cuda::parse_byte_count;

TEST_CASE("byte counts are read with decimal, binary and no units") {
    struct Row {
        const char* text;
        std::uint64_t bytes;
    };
    const auto row = GENERATE(
        Row{"0", 0}, Row{"4096", 4096}, Row{"7B", 7}, Row{"1KB", 1000}, Row{"1KiB", 1024},
        Row{"64MB", 64'000'000}, Row{"256MiB", 256ULL << 20}, Row{"8GB", 8'000'000'000ULL},
        Row{"1.5GiB", 3ULL << 29}, Row{"0.3GB", 300'000'000}, Row{"2TB", 2'000'000'000'000ULL},
        Row{"2TiB", 2ULL << 40}, Row{"4.0", 4}, Row{"18446744073709551615", UINT64_MAX},
        Row{"9007199254740993", 9007199254740993ULL});
    INFO(row.text);
    CHECK(parse_byte_count(row.text) == row.bytes);
}

TEST_CASE("malformed byte counts are refused") {
    const auto* text =
        GENERATE("", " ", " 1", "1 ", "1 MiB", "MiB", "-1", "+1", "inf", "nan", "0x10", "1e3",
                 "1..5MB", "1.5", "0.5B", "1M", "1mib", "1MIB", "1GiB/s", "1,5GB", ".5GB",
                 "18446744073709551616", "16777216TiB", "1GBGB");
    INFO("'" << text << "'");
    CHECK_FALSE(parse_byte_count(text).has_value());
}

TEST_CASE("byte counts are printed in the shortest exact form, which reads back") {
    CHECK(format_byte_count(0) == "0");
    CHECK(format_byte_count(4097) == "4097");
    CHECK(format_byte_count(4096) == "4KiB");
    CHECK(format_byte_count(32768) == "32KiB");
    CHECK(format_byte_count(256ULL << 20) == "256MiB");
    CHECK(format_byte_count(8'000'000'000ULL) == "8GB");
    CHECK(format_byte_count(1'500'000) == "1500KB");
    const auto bytes = GENERATE(1ULL, 4096ULL, 12345678ULL, 3ULL << 40, UINT64_MAX);
    CHECK(parse_byte_count(format_byte_count(bytes)) == bytes);
}
