// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/isa.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include <catch2/catch.hpp>

#include "tests/cpu_optim/sample_values.h"

namespace spillway::cpu_optim {
namespace {

std::string parse_error(std::string_view name) {
    try {
        (void)parse_isa(name);
    } catch (const std::invalid_argument& error) {
        return error.what();
    }
    return "no error";
}

}  // namespace

TEST_CASE("the scalar reference always runs and the best is the widest supported") {
    const auto isas = supported_isas();
    REQUIRE(isas.front() == Isa::scalar);
    REQUIRE(std::ranges::is_sorted(isas));
    REQUIRE(isas.back() == best_isa());
}

TEST_CASE("supported instruction sets agree with the compiler's own processor check") {
    __builtin_cpu_init();
    const auto isas = supported_isas();
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool has_avx512 =
        __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    REQUIRE((std::ranges::count(isas, Isa::avx2) == 1) == has_avx2);
    REQUIRE((std::ranges::count(isas, Isa::avx512) == 1) == (has_avx2 && has_avx512));
}

TEMPLATE_TEST_CASE_SIG("a forced instruction set is the one that runs", "", ((Isa isa), isa),
                       Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    const std::size_t lanes = isa == Isa::scalar ? 1 : isa == Isa::avx2 ? 8 : 16;
    REQUIRE(isa_float_lanes(isa) == lanes);
}

TEST_CASE("every supported instruction set is found by its name") {
    for (const Isa isa : supported_isas())
        REQUIRE(parse_isa(isa_name(isa)) == isa);
    REQUIRE(parse_isa("auto") == best_isa());
}

TEST_CASE("an unknown name is refused with the value, the accepted and the supported ones") {
    for (const std::string name : {"sse9", "", "AVX2", "avx2 "}) {
        const std::string error = parse_error(name);
        CAPTURE(error);
        REQUIRE(error.find("\"" + name + "\"") != std::string::npos);
        REQUIRE(error.find("auto, scalar, avx2, avx512") != std::string::npos);
        REQUIRE(error.find("supports scalar") != std::string::npos);
    }
}

TEST_CASE("a known name that does not run here is refused") {
    const auto isas = supported_isas();
    if (isas.back() == Isa::avx512) {
        spillway::testing::skip("this processor runs every instruction set");
        return;
    }
    const std::string error = parse_error("avx512");
    CAPTURE(error);
    REQUIRE(error.find("avx512 does not run on this machine") != std::string::npos);
    REQUIRE_THROWS_AS(isa_float_lanes(Isa::avx512), std::invalid_argument);
}

}  // namespace spillway::cpu_optim
