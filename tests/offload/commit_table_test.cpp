// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <algorithm>
#include <cstring>
#include <random>
#include <stdexcept>

#include <catch2/catch.hpp>
#include <xxhash.h>

#include "tests/offload/sample_commits.h"

using namespace spillway::offload;
using namespace spillway::testing;

namespace {

using Bytes = std::vector<std::byte>;

Bytes serialised(const CommitTable& table, const CommitTableShape& shape = sample_shape) {
    Bytes bytes(table_capacity_bytes(shape), std::byte{0xee});
    bytes.resize(serialise(table, sample_run(), bytes));
    bytes.shrink_to_fit();  // so that a sanitizer sees a read behind the end
    return bytes;
}

/// Makes the checksum right again, so that what is behind it is reached.
void seal(Bytes& bytes) {
    const std::uint64_t hash = XXH3_64bits(bytes.data() + 16, bytes.size() - 16);
    std::memcpy(bytes.data() + 8, &hash, sizeof hash);
}

template <typename Number>
void put(Bytes& bytes, std::size_t offset, Number value) {
    std::memcpy(bytes.data() + offset, &value, sizeof value);
}

/// True if it parses; any error but a std::runtime_error ends the test.
bool parses(const Bytes& bytes, const CommitTableShape& shape = sample_shape) {
    try {
        static_cast<void>(parse_table(bytes, sample_run(), shape));
        return true;
    } catch (const std::runtime_error& error) {
        REQUIRE(std::string(error.what()).size() > 10);
        return false;
    }
}

std::string refusal(const Bytes& bytes, const CommitTableShape& shape = sample_shape) {
    return error_of([&] { static_cast<void>(parse_table(bytes, sample_run(), shape)); });
}

}  // namespace

TEST_CASE("a commit table is read back as it was", "[commit_table]") {
    for (const CommitTableShape shape :
         {sample_shape, CommitTableShape{0, 0}, CommitTableShape{1, 1}, CommitTableShape{8, 2},
          CommitTableShape{513, 70}, CommitTableShape{.tiles = 8, .tensors = 2, .factors = 7},
          CommitTableShape{9, 2, {Plane::weight, Plane::residue, Plane::m}},
          CommitTableShape{
              9, 2, {Plane::weight, Plane::residue, Plane::m, Plane::v, Plane::extra}}}) {
        auto table = sample_table(7, shape);
        CHECK(same(parse_table(serialised(table, shape), sample_run(), shape), table));
        table.client_state.assign(CommitTable::client_state_limit_bytes, '\xff');
        CHECK(same(parse_table(serialised(table, shape), sample_run(), shape), table));
        table.client_state.clear();
        CHECK(same(parse_table(serialised(table, shape), sample_run(), shape), table));
    }
}

TEST_CASE("a table's capacity is whole pages and its rest is zeros", "[commit_table]") {
    const auto capacity = table_capacity_bytes(sample_shape);
    CHECK(capacity % 4096 == 0);
    Bytes room(capacity, std::byte{0xee});
    const auto length = serialise(sample_table(1), sample_run(), room);
    CHECK(length < capacity);
    CHECK(std::all_of(room.begin() + static_cast<std::ptrdiff_t>(length), room.end(),
                      [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST_CASE("what cannot be serialised is refused by name", "[commit_table]") {
    Bytes room(table_capacity_bytes(sample_shape));
    auto table = sample_table(1);
    table.client_state.assign(CommitTable::client_state_limit_bytes + 1, 'x');
    CHECK_THROWS_WITH(serialise(table, sample_run(), room),
                      Catch::Contains("65537") && Catch::Contains("65536"));
    table = sample_table(1);
    table.planes[2].checksums.pop_back();
    CHECK_THROWS_WITH(serialise(table, sample_run(), room), Catch::Contains("plane m"));
    table = sample_table(1);
    table.planes[3].copies[1] = 2;
    CHECK_THROWS_WITH(serialise(table, sample_run(), room), Catch::Contains("plane v"));
    CHECK_THROWS_AS(serialise(sample_table(1), sample_run(), std::span(room).first(100)),
                    std::invalid_argument);
    CHECK_THROWS_AS(table_capacity_bytes({.tiles = std::uint64_t{1} << 60U, .tensors = 1}),
                    std::invalid_argument);
}

TEST_CASE("every truncation of a table is refused", "[commit_table]") {
    const auto whole = serialised(sample_table(3));
    for (std::size_t length = 0; length < whole.size(); ++length) {
        Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length));
        CHECK_FALSE(parses(cut));
        if (length >= 16)
            seal(cut);
        CHECK_FALSE(parses(cut));
    }
    auto longer = whole;
    longer.push_back(std::byte{0});
    CHECK_FALSE(parses(longer));
    seal(longer);
    CHECK_FALSE(parses(longer));
}

TEST_CASE("every change of a single byte of a table is refused", "[commit_table]") {
    const auto whole = serialised(sample_table(3));
    for (std::size_t at = 0; at < whole.size(); ++at) {
        for (const unsigned change : {0x01U, 0x80U, 0xffU}) {
            auto bytes = whole;
            bytes[at] ^= static_cast<std::byte>(change);
            CHECK_FALSE(parses(bytes));
        }
    }
}

TEST_CASE("the fields of a table with a right checksum are still checked", "[commit_table]") {
    const auto with = [](auto value, std::size_t offset) {
        auto bytes = serialised(sample_table(3));
        put(bytes, offset, value);
        seal(bytes);
        return refusal(bytes);
    };
    CHECK_THAT(with(std::uint32_t{2}, 16),
               Catch::Contains("version 2") && Catch::Contains("reads 1"));
    CHECK_THAT(with(std::uint32_t{5}, 20), Catch::Contains("planes 0x5"));
    CHECK_THAT(with(~std::uint64_t{0}, 24), Catch::Contains("18446744073709551615"));
    CHECK_THAT(with(std::uint8_t{0}, 32), Catch::Contains("belongs to run 008fad5b"));
    CHECK_THAT(with(std::uint64_t{6}, 72), Catch::Contains("6 tiles"));
    CHECK_THAT(with(std::uint32_t{4}, 80), Catch::Contains("4 tensors"));
    CHECK_THAT(with(~std::uint32_t{0}, 84), Catch::Contains("4294967295 bytes"));
    CHECK_THAT(with(std::uint8_t{2}, 88 + 3 * 8), Catch::Contains("neither 0 nor 1"));
}

TEST_CASE("a table that claims huge counts is refused before memory is taken for it",
          "[commit_table]") {
    for (const std::uint64_t tiles :
         {std::uint64_t{1} << 41U, std::uint64_t{1} << 60U, ~std::uint64_t{0}}) {
        const CommitTableShape shape{tiles, ~std::uint32_t{0}};
        auto bytes = serialised(sample_table(3));
        put(bytes, 72, shape.tiles);
        put(bytes, 80, shape.tensors);
        seal(bytes);
        // Taking the memory first would be a std::bad_alloc or a std::length_error, no
        // runtime_error.
        CHECK_FALSE(parses(bytes, shape));
    }
}

TEST_CASE("a tile count whose table size wraps around to a small one is refused",
          "[commit_table]") {
    // 2^62 tiles take 36 * 2^62 bytes, which is 0 in 64 bits.
    const CommitTableShape shape{std::uint64_t{1} << 62U, sample_shape.tensors};
    auto bytes = serialised(sample_table(3));
    bytes.resize(88 + 8 * sample_shape.tensors);
    put(bytes, 24, std::uint64_t{bytes.size()});
    put(bytes, 72, shape.tiles);
    put(bytes, 84, std::uint32_t{0});
    seal(bytes);
    CHECK_THAT(refusal(bytes, shape), Catch::Contains("at most 4398046511104 are possible"));
}

TEST_CASE("mutated tables with a right checksum never crash the parser", "[commit_table]") {
    const auto whole = serialised(sample_table(3));
    std::mt19937_64 random(20240501);
    std::size_t accepted = 0;
    constexpr std::size_t rounds = 20000;
    for (std::size_t round = 0; round < rounds; ++round) {
        auto bytes = whole;
        // Half of the changes in the header, where the sizes stand.
        for (std::size_t change = 1 + random() % 4; change > 0; --change)
            bytes[random() % (random() % 2 == 0 ? std::size_t{104} : bytes.size())] =
                static_cast<std::byte>(random());
        if (random() % 4 == 0)
            bytes.resize(random() % (bytes.size() + 1));
        bytes.shrink_to_fit();
        if (bytes.size() >= 16)
            seal(bytes);
        accepted += parses(bytes) ? std::size_t{1} : 0;
    }
    CHECK(accepted > 0);  // counters and checksums are free to be anything
    CHECK(accepted < rounds);
}

TEST_CASE("a table of another run is refused naming both", "[commit_table]") {
    const auto other = RunId::random();
    const auto bytes = serialised(sample_table(3));
    CHECK_THROWS_WITH(parse_table(bytes, other, sample_shape),
                      Catch::Contains(other.text()) && Catch::Contains(sample_run().text()));
}
