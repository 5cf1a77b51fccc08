// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/data/held_out_split.h"

#include <set>
#include <vector>

#include <catch2/catch.hpp>

using spillway::engine::HeldOutSplit;

TEST_CASE("blocks are a 64th of the data, in powers of two, and at most 64 KiB") {
    CHECK(HeldOutSplit(0).block_bytes() == 1);
    CHECK(HeldOutSplit(64).block_bytes() == 1);
    CHECK(HeldOutSplit(8191).block_bytes() == 64);
    CHECK(HeldOutSplit(8192).block_bytes() == 128);
    CHECK(HeldOutSplit(2'096'792).block_bytes() == 16384);
    CHECK(HeldOutSplit(4 << 20).block_bytes() == 65536);
    CHECK(HeldOutSplit(1ULL << 40).block_bytes() == 65536);
}

TEST_CASE("every 16th whole block is held out, and no training window touches one") {
    const std::uint64_t total = GENERATE(1024u, 1500u, 2047u, 2048u, 5000u);
    const std::size_t length = GENERATE(1u, 2u, 7u, 16u);
    const HeldOutSplit split(total);
    const std::uint64_t block = split.block_bytes();
    std::vector<bool> held(total, false);
    std::uint64_t held_blocks = 0;
    for (std::uint64_t b = 15; (b + 1) * block <= total; b += 16, ++held_blocks)
        for (std::uint64_t i = 0; i < block; ++i)
            held[b * block + i] = true;

    std::set<std::uint64_t> starts;
    for (std::uint64_t i = 0; i < split.training_windows(length); ++i)
        starts.insert(split.training_offset(i, length));
    CHECK(starts.size() == split.training_windows(length));
    for (std::uint64_t start = 0; start + length <= total; ++start) {
        bool free = true;
        for (std::size_t i = 0; i < length; ++i)
            free = free && !held[start + i];
        REQUIRE(starts.contains(start) == free);
    }

    REQUIRE(split.held_out_windows(length) == held_blocks * (block / length));
    std::uint64_t end = 0;
    for (std::uint64_t i = 0; i < split.held_out_windows(length); ++i) {
        const auto start = split.held_out_offset(i, length);
        REQUIRE(start >= end);
        end = start + length;
        for (std::uint64_t at = start; at < end; ++at)
            REQUIRE(held[at]);
    }
}

TEST_CASE("the least size that holds a window out is known") {
    const std::size_t length = GENERATE(2u, 65u, 128u, 1025u, 65536u);
    const auto least = HeldOutSplit::least_total_bytes(length);
    CHECK(HeldOutSplit(least).held_out_windows(length) > 0);
    CHECK(HeldOutSplit(least).training_windows(length) > 0);
    CHECK(HeldOutSplit(least - 1).held_out_windows(length) == 0);
    CHECK(HeldOutSplit::least_total_bytes(65537) == 0);
}
