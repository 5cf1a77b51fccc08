// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/gradient_scan.h"

#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include <catch2/catch.hpp>

#include "cpu_optim/float_formats.h"
#include "tests/cpu_optim/guarded_buffer.h"
#include "tests/cpu_optim/sample_values.h"

namespace spillway::cpu_optim {
namespace {

using testing::GuardedBuffer;
using testing::Placement;

constexpr std::size_t tile_elements = 16384;

/// The shape the header fixes, spelled out.
GradientScan scan_by_definition(std::span<const float> tile) {
    double s[16] = {};
    GradientScan scan;
    for (std::size_t i = 0; i < tile.size(); ++i) {
        const double x = tile[i];
        s[i % 16] += x * x;
        scan.nonfinite += std::isfinite(x) ? 0u : 1u;
    }
    for (int i = 0; i < 8; ++i)
        s[i] += s[i + 8];
    for (int i = 0; i < 4; ++i)
        s[i] += s[i + 4];
    scan.sum_of_squares = (s[0] + s[2]) + (s[1] + s[3]);
    return scan;
}

/// The bits, with all NaNs taken as the one that scan_gradient gives.
std::uint64_t bits_of(double value) {
    return std::bit_cast<std::uint64_t>(std::isnan(value) ? std::numeric_limits<double>::quiet_NaN()
                                                          : value);
}

void require_equal(const GradientScan& found, const GradientScan& expected) {
    REQUIRE(std::bit_cast<std::uint64_t>(found.sum_of_squares) == bits_of(expected.sum_of_squares));
    REQUIRE(found.nonfinite == expected.nonfinite);
}

}  // namespace

TEMPLATE_TEST_CASE_SIG("a scan has the bits of its definition for any length and place", "",
                       ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    for (const std::size_t length : testing::awkward_lengths())
        for (const Placement placement : testing::every_placement) {
            CAPTURE(length, placement);
            const GuardedBuffer<float> tile(length, placement);
            for (std::size_t i = 0; i < length; ++i)
                tile.span()[i] = testing::sample_magnitude(2, i, 1e-44, 1e3);
            require_equal(scan_gradient(isa, tile.span()), scan_by_definition(tile.span()));
            for (std::size_t i = 0; i < length; ++i)
                tile.span()[i] = testing::sample_any(3, i);
            require_equal(scan_gradient(isa, tile.span()), scan_by_definition(tile.span()));
            REQUIRE(tile.unharmed());
        }
}

TEMPLATE_TEST_CASE_SIG("a scan of 16-bit gradients has the bits of the scan of their fp32 values",
                       "", ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    for (const auto type : {GradientType::bf16, GradientType::fp16})
        for (const std::size_t length : testing::awkward_lengths())
            for (const Placement placement : testing::every_placement) {
                CAPTURE(type, length, placement);
                const GuardedBuffer<std::uint16_t> tile(length, placement);
                std::vector<float> widened(length);
                // Without a non-finite value the bits of the sum say more.
                const std::uint64_t finite_only = length % 2;
                for (std::size_t i = 0; i < length; ++i) {
                    auto half = static_cast<std::uint16_t>(testing::sample_bits(7, i));
                    if (finite_only != 0)
                        half &= 0xBFFFu;
                    tile.span()[i] = half;
                    widened[i] = type == GradientType::bf16 ? from_bf16(half) : from_fp16(half);
                }
                const auto found = scan_gradient(isa, tile.span().data(), type, length);
                require_equal(found, scan_by_definition(widened));
                REQUIRE(tile.unharmed());
            }
}

TEMPLATE_TEST_CASE_SIG(
    "all 65536 values of a 16-bit type are squared as the fp32 value they stand for", "",
    ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    for (const auto type : {GradientType::bf16, GradientType::fp16}) {
        std::size_t faults = 0;
        std::vector<std::uint16_t> row(16);
        for (unsigned bits = 0; bits <= 0xFFFF; ++bits) {
            row[bits % row.size()] = static_cast<std::uint16_t>(bits);
            const double x = type == GradientType::bf16 ? from_bf16(row[bits % row.size()])
                                                        : from_fp16(row[bits % row.size()]);
            const auto scan = scan_gradient(isa, row.data(), type, row.size());
            faults += bits_of(scan.sum_of_squares) == bits_of(x * x) ? 0u : 1u;
            faults += scan.nonfinite == (std::isfinite(x) ? 0u : 1u) ? 0u : 1u;
            row[bits % row.size()] = 0;
        }
        CAPTURE(type);
        REQUIRE(faults == 0);
    }
}

TEMPLATE_TEST_CASE_SIG("a million gradients of 300 have the norm 3.0e5", "", ((Isa isa), isa),
                       Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    const std::vector<float> gradient(1'000'000, 300.0F);
    const GradientScan scan = scan_gradient(isa, gradient);
    REQUIRE(std::sqrt(scan.sum_of_squares) == 3.0e5);
    REQUIRE(scan.nonfinite == 0);
}

TEMPLATE_TEST_CASE_SIG("one non-finite gradient is counted wherever it stands", "",
                       ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    std::vector<float> tile(tile_elements + 5, 0.25F);
    for (const float bad : {std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(), std::nanf("7")})
        for (const std::size_t place : {std::size_t{0}, tile.size() / 2, tile.size() - 1}) {
            CAPTURE(bad, place);
            tile[place] = bad;
            const GradientScan scan = scan_gradient(isa, tile);
            REQUIRE(scan.nonfinite == 1);
            REQUIRE_FALSE(std::isfinite(scan.sum_of_squares));
            tile[place] = 0.25F;
        }
    REQUIRE(scan_gradient(isa, tile).nonfinite == 0);
}

TEMPLATE_TEST_CASE_SIG("the largest and the smallest gradients neither overflow nor vanish", "",
                       ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    const float smallest = std::numeric_limits<float>::denorm_min();
    const GradientScan high = scan_gradient(isa, std::vector<float>(tile_elements, -0x1p127F));
    REQUIRE(high.nonfinite == 0);
    REQUIRE(high.sum_of_squares == std::ldexp(1.0, 14 + 2 * 127));
    const GradientScan low = scan_gradient(isa, std::vector<float>(tile_elements, smallest));
    REQUIRE(low.sum_of_squares == std::ldexp(1.0, 14 - 2 * 149));
}

TEMPLATE_TEST_CASE_SIG("padding of zeros changes no bit of a scan", "", ((Isa isa), isa),
                       Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    std::vector<float> tile;
    for (std::size_t i = 0; i < 1001; ++i)
        tile.push_back(testing::sample_magnitude(4, i, 1e-8, 1e3));
    const GradientScan bare = scan_gradient(isa, tile);
    tile.resize(tile_elements, 0.0F);
    require_equal(scan_gradient(isa, tile), bare);
}

TEMPLATE_TEST_CASE_SIG("add_gradient has the bits of a plain sum for any length and place", "",
                       ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    for (const std::size_t length : testing::awkward_lengths())
        for (const Placement placement : testing::every_placement) {
            CAPTURE(length, placement);
            const GuardedBuffer<float> into(length, placement);
            const GuardedBuffer<float> from(length, placement);
            std::vector<float> expected(length);
            for (std::size_t i = 0; i < length; ++i) {
                into.span()[i] = testing::sample_any(5, i);
                from.span()[i] = testing::sample_any(6, i);
                const float sum = into.span()[i] + from.span()[i];
                expected[i] = std::isnan(sum) ? std::numeric_limits<float>::quiet_NaN() : sum;
            }
            add_gradient(isa, into.span(), from.span());
            REQUIRE(testing::first_difference<float>(into.span(), expected) == length);
            REQUIRE((into.unharmed() && from.unharmed()));
        }
}

TEST_CASE("add_gradient refuses spans of different lengths") {
    std::vector<float> into(8);
    const std::vector<float> from(9);
    REQUIRE_THROWS_AS(add_gradient(Isa::scalar, into, from), std::invalid_argument);
}

}  // namespace spillway::cpu_optim
