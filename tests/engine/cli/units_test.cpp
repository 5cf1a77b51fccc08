// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/units.h"

#include <catch2/catch.hpp>

using spillway::engine::parse_duration_s;
using spillway::engine::parse_size_bytes;

TEST_CASE("times are read with one or more units, or as seconds") {
    struct Row {
        const char* text;
        double seconds;
    };
    const auto row =
        GENERATE(Row{"24h", 86400}, Row{"90s", 90}, Row{"15m", 900}, Row{"1h30m", 5400},
                 Row{"1.5h", 5400}, Row{"2d", 172800}, Row{"1d2h3m4.5s", 93784.5},
                 Row{"1h5s", 3605}, Row{"0s", 0}, Row{"90", 90}, Row{"86400.0", 86400});
    INFO(row.text);
    CHECK(parse_duration_s(row.text) == row.seconds);
}

TEST_CASE("malformed times are refused with what is accepted") {
    const auto* text = GENERATE("", "h", "1x", "-1h", "+1h", " 1h", "1h ", "1 h", "30m1h", "1h1h",
                                "1h30", "inf", "nan", "1e3s", "1hm", "24H", "1min", "ms", "1..5h");
    INFO(text);
    CHECK_THROWS_WITH(parse_duration_s(text),
                      Catch::Contains(std::string("\"") + text + "\" is no time") &&
                          Catch::Contains("\"1h30m\""));
    CHECK_THROWS_AS(parse_duration_s(text), std::invalid_argument);
}

TEST_CASE("times of more than a century, and sizes of 2^64 bytes, are too large") {
    CHECK(parse_duration_s("36600d") == 36600 * 86400.0);
    const auto* time = GENERATE("36601d", "99999999999999d", "9999999999999", "36600d1s");
    CHECK_THROWS_WITH(parse_duration_s(time), Catch::Contains("100 years"));
    CHECK_THROWS_WITH(parse_duration_s(std::string(400, '9')), Catch::Contains("100 years"));
    const auto* size = GENERATE("20000000TiB", "18446744073709551616", "99999999999999999999GB");
    CHECK_THROWS_WITH(parse_size_bytes(size), Catch::Contains("is too large a size"));
}

TEST_CASE("sizes are read, and malformed ones refused with what is accepted") {
    CHECK(parse_size_bytes("8GiB") == 8ULL << 30);
    CHECK(parse_size_bytes("64MB") == 64'000'000);
    CHECK(parse_size_bytes("4096") == 4096);
    const auto* text = GENERATE("", "8G", "-1", "8 GiB", "lots", "20000000XiB");
    CHECK_THROWS_WITH(parse_size_bytes(text),
                      Catch::Contains(std::string("\"") + text + "\" is no size") &&
                          Catch::Contains("KiB, MiB, GiB, TiB"));
    CHECK_THROWS_AS(parse_size_bytes(text), std::invalid_argument);
}
