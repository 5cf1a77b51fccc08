// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/device_spec.h"

#include <catch2/catch.hpp>

#include "cuda/device.h"

using spillway::cuda::DeviceSpec;
using spillway::cuda::make_device;
using spillway::cuda::parse_device_spec;

TEST_CASE("device specs are read") {
    struct Row {
        const char* text;
        DeviceSpec::Kind kind;
        std::size_t capacity_bytes;
        double link_bytes_per_s;
    };
    using Kind = DeviceSpec::Kind;
    const auto row =
        GENERATE(Row{"cpu", Kind::cpu, 0, 0}, Row{"sim:4096", Kind::sim, 4096, 0},
                 Row{"sim:256MiB", Kind::sim, std::size_t{256} << 20, 0},
                 Row{"sim:1.5GiB@8GB/s", Kind::sim, std::size_t{3} << 29, 8e9},
                 Row{"sim:64MB@500MB/s", Kind::sim, 64'000'000, 5e8},
                 Row{"sim:8GiB@2GiB/s", Kind::sim, std::size_t{8} << 30, 2.0 * (1 << 30)},
                 Row{"sim:1MiB@1000/s", Kind::sim, 1 << 20, 1000}, Row{"cuda:0", Kind::cuda, 0, 0});
    INFO(row.text);
    const DeviceSpec spec = parse_device_spec(row.text);
    CHECK(spec.kind == row.kind);
    CHECK(spec.capacity_bytes == row.capacity_bytes);
    CHECK(spec.link_bytes_per_s == row.link_bytes_per_s);
}

TEST_CASE("malformed device specs are refused by name, with what is wrong and what is accepted") {
    struct Row {
        const char* text;
        const char* problem;
    };
    const auto row = GENERATE(
        Row{"", "empty"}, Row{"gpu", "no device has this name"},
        Row{"CPU", "no device has this name"}, Row{"cpu:0", "no device has this name"},
        Row{"sim", "needs a size"}, Row{"sim:", "the size ''"}, Row{"sim:lots", "the size 'lots'"},
        Row{"sim:-1", "the size '-1'"}, Row{"sim:100", "one page of 4096"},
        Row{"sim:0", "one page of 4096"}, Row{"sim:1GiB@", "does not end in '/s'"},
        Row{"sim:1GiB@8GB", "does not end in '/s'"}, Row{"sim:1GiB@/s", "the rate '/s'"},
        Row{"sim:1GiB@fast/s", "the rate 'fast/s'"}, Row{"sim:1GiB@0/s", "is zero"},
        Row{"sim:1GiB@8GB/s@8GB/s", "the rate '8GB/s@8GB/s'"},
        Row{"sim:1GiB@8GB/s ", "does not end in '/s'"},
        Row{"sim:99999999TiB", "the size '99999999TiB'"}, Row{"cuda", "needs a number"},
        Row{"cuda:", "needs a number"}, Row{"cuda:one", "the number 'one'"},
        Row{"cuda:-1", "the number '-1'"}, Row{"cuda:0x", "the number '0x'"},
        Row{"cuda:99999999999", "the number '99999999999'"});
    INFO("'" << row.text << "'");
    CHECK_THROWS_WITH(parse_device_spec(row.text),
                      Catch::Contains(std::string("'") + row.text + "'") &&
                          Catch::Contains(row.problem) && Catch::Contains("accepted are 'cpu'"));
    CHECK_THROWS_AS(make_device(row.text, 1 << 20), std::invalid_argument);
}

TEST_CASE("a GPU is told by its number, and one that is not there is refused by name") {
    CHECK(parse_device_spec("cuda:0").ordinal == 0);
    CHECK(parse_device_spec("cuda:12").ordinal == 12);
    CHECK_THROWS_AS(make_device("cuda:1023", 1 << 20), std::invalid_argument);
    CHECK_THROWS_WITH(make_device("cuda:1023", 1 << 20), Catch::Contains("'cuda:1023'"));
}

TEST_CASE("a simulated device too big for the host's address space is refused by name") {
    CHECK_THROWS_WITH(make_device("sim:1000TiB", 0), Catch::Contains("'sim:1000TiB'"));
}
