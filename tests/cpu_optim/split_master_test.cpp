// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/split_master.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/cpu_optim/guarded_buffer.h"
#include "tests/cpu_optim/sample_values.h"

namespace spillway::cpu_optim {
namespace {

using testing::GuardedBuffer;
using testing::Placement;

/// Zero, subnormal, ordinary, the last finite ones, infinity and NaN, both signs.
constexpr std::array<std::uint16_t, 18> telling_hi{0x0000, 0x0001, 0x007F, 0x0080, 0x3F80, 0x3F81,
                                                   0x7F7E, 0x7F7F, 0x7F80, 0x7FC0, 0x7FFF, 0x8000,
                                                   0x8001, 0xBF80, 0xFF7E, 0xFF7F, 0xFF80, 0xFFFF};

std::uint32_t bits_of(float value) {
    return std::bit_cast<std::uint32_t>(value);
}

double bf16_value(std::uint32_t hi) {
    return std::bit_cast<float>((hi & 0xFFFFu) << 16);
}

/// By the definition of rounding, not by its bit trick; for values with a finite hi.
bool is_nearest_ties_away(float value, std::uint16_t hi) {
    const double error = std::abs(value - bf16_value(hi));
    const double error_below = std::abs(value - bf16_value(hi - 1u));
    const bool above_is_finite = (hi & 0x7FFFu) < 0x7F7Fu;
    const double error_above = above_is_finite ? std::abs(value - bf16_value(hi + 1u))
                                               : std::numeric_limits<double>::infinity();
    const bool has_below = (hi & 0x7FFFu) != 0;
    return (!has_below || error <= error_below) && error < error_above;
}

/// One number per broken property, so that a sweep makes one assertion.
struct SweepFaults {
    std::size_t round_trip = 0;
    std::size_t rounding = 0;
    std::size_t finiteness = 0;

    void check(std::uint32_t u) {
        const float value = std::bit_cast<float>(u);
        const SplitWeight halves = split(value);
        round_trip += bits_of(join(halves)) == u ? 0u : 1u;
        const bool finite_hi =
            std::isfinite(value) && std::abs(static_cast<double>(value)) < 0x1.FFp127;
        finiteness += has_finite_hi(value) == finite_hi ? 0u : 1u;
        if (finite_hi)
            rounding += is_nearest_ties_away(value, halves.hi) ? 0u : 1u;
    }
    void require_none() const {
        REQUIRE(round_trip == 0);
        REQUIRE(rounding == 0);
        REQUIRE(finiteness == 0);
    }
};

}  // namespace

TEST_CASE("split and join undo each other for all residues of telling weights") {
    SweepFaults faults;
    for (const std::uint32_t hi : telling_hi)
        for (std::uint32_t low = 0; low <= 0xFFFF; ++low)
            faults.check((hi << 16) | low);
    faults.require_none();
}

TEST_CASE("split and join undo each other over the whole range of floats") {
    SweepFaults faults;
    for (std::uint64_t u = 0; u <= 0xFFFFFFFFu; u += 2039)
        faults.check(static_cast<std::uint32_t>(u));
    for (std::uint32_t hi = 0; hi <= 0xFFFF; ++hi)
        for (const std::uint32_t low : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu})
            faults.check((hi << 16) | low);
    faults.require_none();
}

TEST_CASE("every pair of halves is the split of the value it joins to") {
    std::size_t faults = 0;
    for (const std::uint16_t hi : telling_hi)
        for (int lo = -32768; lo <= 32767; ++lo) {
            const SplitWeight again = split(join({hi, static_cast<std::int16_t>(lo)}));
            faults += again.hi == hi && again.lo == lo ? 0u : 1u;
        }
    REQUIRE(faults == 0);
}

TEST_CASE("the last master with a finite half") {
    const float last = std::bit_cast<float>(0x7F7F7FFFu);
    const float first_without = std::bit_cast<float>(0x7F7F8000u);
    REQUIRE(split(last).hi == 0x7F7F);
    REQUIRE(split(first_without).hi == 0x7F80);
    REQUIRE(has_finite_hi(last));
    REQUIRE(has_finite_hi(-last));
    REQUIRE_FALSE(has_finite_hi(first_without));
    REQUIRE_FALSE(has_finite_hi(-first_without));
    REQUIRE_FALSE(has_finite_hi(std::numeric_limits<float>::max()));
    REQUIRE_FALSE(has_finite_hi(std::bit_cast<float>(0xFFFFFFFFu)));
}

TEMPLATE_TEST_CASE_SIG("split_master and join_master do as split and join for all residues", "",
                       ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    std::vector<float> master(65536);
    std::vector<std::uint16_t> hi(master.size());
    std::vector<std::int16_t> lo(master.size());
    std::vector<float> joined(master.size());
    for (const std::uint32_t telling : telling_hi) {
        std::size_t without_finite_hi = 0;
        for (std::uint32_t low = 0; low <= 0xFFFF; ++low) {
            master[low] = std::bit_cast<float>((telling << 16) | low);
            without_finite_hi += has_finite_hi(master[low]) ? 0u : 1u;
        }
        CAPTURE(telling);
        REQUIRE(split_master(isa, master, hi, lo) == without_finite_hi);
        std::size_t faults = 0;
        for (std::size_t i = 0; i < master.size(); ++i) {
            const SplitWeight expected = split(master[i]);
            faults += hi[i] == expected.hi && lo[i] == expected.lo ? 0u : 1u;
        }
        REQUIRE(faults == 0);
        join_master(isa, hi, lo, joined);
        REQUIRE(testing::first_difference<float>(joined, master) == master.size());
    }
}

TEMPLATE_TEST_CASE_SIG("split_master and join_master stay within runs of any length and place", "",
                       ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    for (const std::size_t length : testing::awkward_lengths())
        for (const Placement placement : testing::every_placement) {
            CAPTURE(length, placement);
            const GuardedBuffer<float> master(length, placement);
            const GuardedBuffer<std::uint16_t> hi(length, placement);
            const GuardedBuffer<std::int16_t> lo(length, placement);
            const GuardedBuffer<float> joined(length, placement);
            std::size_t without_finite_hi = 0;
            for (std::size_t i = 0; i < length; ++i) {
                master.span()[i] = testing::sample_any(1, i);
                without_finite_hi += has_finite_hi(master.span()[i]) ? 0u : 1u;
            }
            REQUIRE(split_master(isa, master.span(), hi.span(), lo.span()) == without_finite_hi);
            join_master(isa, hi.span(), lo.span(), joined.span());
            REQUIRE(testing::first_difference<float>(joined.span(), master.span()) == length);
            REQUIRE((master.unharmed() && hi.unharmed() && lo.unharmed() && joined.unharmed()));
        }
}

TEST_CASE("split_master and join_master refuse spans of different lengths") {
    std::vector<float> master(8);
    std::vector<std::uint16_t> hi(7);
    std::vector<std::int16_t> lo(8);
    REQUIRE_THROWS_WITH(
        split_master(Isa::scalar, master, hi, lo),
        "split_master: span hi has 7 elements and needs 8: all spans of a call have "
        "one length");
    REQUIRE_THROWS_AS(join_master(Isa::scalar, hi, lo, master), std::invalid_argument);
}

}  // namespace spillway::cpu_optim
