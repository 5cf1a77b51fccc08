// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/data/byte_corpus.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <random>
#include <set>

#include <catch2/catch.hpp>
#include <xxhash.h>

#include "tests/support/temporary_folder.h"

using spillway::engine::ByteCorpus;
using spillway::engine::HeldOutSplit;
using spillway::testing::TemporaryFolder;

namespace {

using Tokens = std::vector<std::int32_t>;

std::string random_bytes(std::size_t bytes, unsigned seed) {
    std::mt19937 random(seed);
    std::string text(bytes, '\0');
    std::generate(text.begin(), text.end(), [&] { return static_cast<char>(random() & 0xFF); });
    return text;
}

std::filesystem::path write(const TemporaryFolder& folder, const std::string& name,
                            const std::string& text) {
    const auto path = folder.path() / name;
    std::ofstream(path, std::ios::binary) << text;
    return path;
}

Tokens tokens_of(const std::string& text, std::uint64_t offset, std::size_t length) {
    Tokens tokens(length);
    std::transform(text.begin() + static_cast<std::ptrdiff_t>(offset),
                   text.begin() + static_cast<std::ptrdiff_t>(offset + length), tokens.begin(),
                   [](char c) { return static_cast<unsigned char>(c); });
    return tokens;
}

Tokens training(const ByteCorpus& corpus, std::uint64_t seed, std::uint64_t iteration,
                std::uint64_t sequence, std::size_t sequence_tokens) {
    Tokens tokens(sequence_tokens + 1);
    corpus.training_sequence(seed, iteration, sequence, tokens);
    return tokens;
}

}  // namespace

TEST_CASE("a training window is the one that the documented hash names") {
    const TemporaryFolder folder;
    const auto text = random_bytes(20'000, 1);
    const ByteCorpus corpus({write(folder, "a", text)}, 32);
    const HeldOutSplit split(text.size());
    const auto windows = split.training_windows(33);
    const auto mix = [](std::uint64_t x) {
        x += 0x9E3779B97F4A7C15;
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
        return x ^ (x >> 31);
    };
    // The published first output of splitmix64 for the state 0.
    REQUIRE(mix(0) == 0xE220A8397B1DCDAF);
    for (std::uint64_t iteration = 0; iteration < 50; ++iteration) {
        const auto hash = mix(mix(mix(mix(0x64617461) + 9) + iteration) + 3);
        const auto index = static_cast<std::uint64_t>(static_cast<long double>(hash) *
                                                      static_cast<long double>(windows) * 0x1p-64L);
        CHECK(training(corpus, 9, iteration, 3, 32) ==
              tokens_of(text, split.training_offset(index, 33), 33));
    }
}

TEST_CASE("windows depend on seed, iteration and sequence, not on the batch or the files' cuts") {
    const TemporaryFolder folder;
    const auto text = random_bytes(30'000, 2);
    const ByteCorpus whole({write(folder, "whole", text)}, 64);
    const ByteCorpus cut(
        {write(folder, "1", text.substr(0, 1)), write(folder, "2", text.substr(1, 9'999)),
         write(folder, "3", text.substr(10'000, 40)), write(folder, "4", text.substr(10'040))},
        64);
    REQUIRE(cut.size_bytes() == text.size());
    CHECK(cut.fingerprint() == whole.fingerprint());
    std::set<Tokens> seen;
    for (std::uint64_t seed = 0; seed < 2; ++seed)
        for (std::uint64_t iteration = 0; iteration < 20; ++iteration) {
            Tokens batch(5 * 65);
            whole.training_window(seed, iteration, 5, 64, batch);
            for (std::size_t sequence = 0; sequence < 5; ++sequence) {
                const auto window = training(cut, seed, iteration, sequence, 64);
                REQUIRE(std::equal(window.begin(), window.end(),
                                   batch.begin() + static_cast<std::ptrdiff_t>(sequence * 65)));
                seen.insert(window);
            }
        }
    CHECK(seen.size() > 190);
    Tokens held_whole(65);
    Tokens held_cut(65);
    for (std::uint64_t i = 0; i < whole.held_out_windows(64); ++i) {
        whole.held_out_sequence(i, held_whole);
        cut.held_out_sequence(i, held_cut);
        REQUIRE(held_whole == held_cut);
    }
}

TEST_CASE("training windows reach every part of the training data, and no held-out byte") {
    const TemporaryFolder folder;
    // Each byte says whether its block is held out.
    constexpr std::size_t block = 64;
    std::string text(64 * block + 200, 't');
    for (std::size_t b = 15; b < 64; b += 16)
        std::fill_n(text.begin() + static_cast<std::ptrdiff_t>(b * block), block, 'h');
    const ByteCorpus corpus({write(folder, "marked", text)}, 15);
    for (std::uint64_t iteration = 0; iteration < 2000; ++iteration) {
        const auto window = training(corpus, 5, iteration, 0, 15);
        REQUIRE(std::count(window.begin(), window.end(), 't') == 16);
    }
    REQUIRE(corpus.held_out_windows(15) == 16);
    Tokens window(16);
    for (std::uint64_t i = 0; i < 16; ++i) {
        corpus.held_out_sequence(i, window);
        REQUIRE(std::count(window.begin(), window.end(), 'h') == 16);
    }

    // Now each byte says how far in the stream it stands, in 1/64.
    for (std::size_t i = 0; i < text.size(); ++i)
        text[i] = static_cast<char>(i * 64 / text.size());
    const ByteCorpus placed({write(folder, "placed", text)}, 15);
    std::array<int, 64> counts{};
    for (std::uint64_t iteration = 0; iteration < 20'000; ++iteration)
        ++counts[static_cast<std::size_t>(training(placed, 5, iteration, 1, 15)[0])];
    CHECK(std::count(counts.begin(), counts.end(), 0) <= 4);
    CHECK(*std::max_element(counts.begin(), counts.end()) < 2 * 20'000 / 60);
}

TEST_CASE("held-out windows begin again past the last, and batches follow each other") {
    const TemporaryFolder folder;
    const ByteCorpus corpus({write(folder, "a", random_bytes(4096, 3))}, 30);
    REQUIRE(corpus.held_out_windows(30) == 8);
    Tokens second(3 * 31);
    corpus.held_out_window(2, 3, 30, second);
    Tokens expected;
    for (const std::uint64_t index : {6u, 7u, 0u}) {
        Tokens window(31);
        corpus.held_out_sequence(index, window);
        expected.insert(expected.end(), window.begin(), window.end());
    }
    CHECK(second == expected);
}

TEST_CASE("data too short or sequences too long are refused with the bytes needed") {
    const TemporaryFolder folder;
    const auto path = write(folder, "short", random_bytes(8191, 4));
    CHECK_NOTHROW(ByteCorpus({path}, 63));
    CHECK_THROWS_WITH(ByteCorpus({path}, 64),
                      Catch::Contains("short: too short for a sequence of 64 tokens") &&
                          Catch::Contains("8191 bytes, at least 8192"));
    CHECK_THROWS_WITH(ByteCorpus({path, path}, 1000),
                      Catch::Contains("short and 1 more: too short"));
    CHECK_THROWS_WITH(ByteCorpus({path}, 65536), Catch::Contains("the longest has 65535"));
    CHECK_THROWS_WITH(ByteCorpus({}), Catch::Contains("no file is named"));
    const ByteCorpus corpus({path}, 8);
    Tokens window(300);
    CHECK_THROWS_AS(corpus.training_sequence(1, 1, 1, window), std::invalid_argument);
    CHECK_THROWS_AS(corpus.held_out_sequence(1, window), std::invalid_argument);
    CHECK_THROWS_WITH(corpus.training_window(1, 1, 2, 8, window),
                      Catch::Contains("300 tokens of room for 2 windows of 9"));
}

TEST_CASE("the fingerprint is the hash of size and bytes, and any change changes it") {
    const TemporaryFolder folder;
    auto text = random_bytes((3 << 20) + 17, 5);
    const ByteCorpus corpus({write(folder, "a", text)});
    const std::uint64_t size = text.size();
    std::string hashed(reinterpret_cast<const char*>(&size), sizeof(size));
    hashed += text;
    char expected[17];
    std::snprintf(expected, sizeof(expected), "%016llx",
                  static_cast<unsigned long long>(XXH3_64bits(hashed.data(), hashed.size())));
    CHECK(corpus.fingerprint() == expected);
    text[2'500'000] = static_cast<char>(text[2'500'000] ^ 1);
    CHECK(ByteCorpus({write(folder, "b", text)}).fingerprint() != expected);
    text[2'500'000] = static_cast<char>(text[2'500'000] ^ 1);
    text += '\0';
    CHECK(ByteCorpus({write(folder, "c", text)}).fingerprint() != expected);
}

TEST_CASE("the sample text is the one its README describes") {
    const auto tests = std::filesystem::path(__FILE__).parent_path();
    const auto path = tests / "../../../engine/data/kjv.txt";
    const ByteCorpus corpus({path}, 1024);
    CHECK(corpus.size_bytes() == 2'096'792);
    CHECK(corpus.held_out_windows(1024) == 7 * 15);
    const auto window = training(corpus, 1, 1, 0, 1024);
    CHECK(std::all_of(window.begin(), window.end(),
                      [](std::int32_t t) { return t == '\n' || (t >= ' ' && t <= '~'); }));
}
