// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/drives/extent_map.h"

#include <algorithm>
#include <array>
#include <set>
#include <stdexcept>

#include <catch2/catch.hpp>

namespace spillway::offload::detail {
namespace {

constexpr std::uint64_t tiles = 1000;
constexpr std::uint64_t region_tiles = 8;

ExtentMap mapped(std::span<const double> rates, Durability durability = Durability::on) {
    ExtentMap map(tiles, durability, training_planes, region_tiles);
    map.assign(rates);
    return map;
}

/// Whether no two pieces of any plane, copy and tile share a byte.
bool overlaps(const ExtentMap& map, unsigned copies) {
    std::set<std::pair<std::size_t, std::uint64_t>> pages;
    for (const auto plane : training_planes) {
        for (unsigned copy = 0; copy < copies; ++copy) {
            for (std::uint64_t tile = 0; tile < tiles; ++tile) {
                const auto place = map.place(plane, copy, tile);
                for (std::size_t at = 0; at < tile_bytes(plane); at += 4096)
                    if (!pages.insert({place.drive, place.offset_bytes + at}).second)
                        return true;
            }
        }
    }
    return false;
}

constexpr auto room_everywhere = [](std::size_t, std::uint64_t) { return true; };

}  // namespace

TEST_CASE("extent map: regions depend on tiles and drives alone") {
    CHECK(region_tiles_for(1 << 20, 1) == 0);
    CHECK(region_tiles_for(1 << 20, 2) == 64);
    CHECK(region_tiles_for(100, 3) == 2);
    CHECK(region_tiles_for(1, 2) == 1);
    CHECK(place_count(1000, Durability::on, 8) == 250);
    CHECK(place_count(1001, Durability::off, 8) == 126);
    CHECK(place_count(1000, Durability::on, 0) == 0);
}

TEST_CASE("extent map: shares are in proportion to rates, in any run of regions") {
    const std::array rates{3.0, 1.0};
    const auto drives = divide(400, rates);
    for (std::size_t begin = 0; begin + 40 <= drives.size(); begin += 7) {
        const auto first = std::count(drives.begin() + static_cast<std::ptrdiff_t>(begin),
                                      drives.begin() + static_cast<std::ptrdiff_t>(begin) + 40, 0u);
        CHECK(first >= 29);
        CHECK(first <= 31);
    }
}

TEST_CASE("extent map: no two copies share a byte, and files hold exactly what is on them") {
    const std::array rates{1.0, 2.0, 0.5};
    for (const auto durability : {Durability::on, Durability::off}) {
        const auto map = mapped(rates, durability);
        CHECK_FALSE(overlaps(map, durability == Durability::on ? 2 : 1));
        const auto sum = map.file_bytes(0) + map.file_bytes(1) + map.file_bytes(2);
        CHECK(sum == extents_bytes(tiles, durability, training_planes, region_tiles));
    }
}

TEST_CASE("extent map: tiles of a region follow each other, whatever the chunk") {
    const std::array rates{1.0, 1.0};
    const auto map = mapped(rates);
    for (std::uint64_t tile = 0; tile + 1 < tiles; ++tile) {
        if (map.run_end(tile) == tile + 1)
            continue;
        const auto one = map.place(Plane::m, 1, tile);
        const auto next = map.place(Plane::m, 1, tile + 1);
        CHECK(one.drive == next.drive);
        CHECK(one.offset_bytes + tile_bytes(Plane::m) == next.offset_bytes);
    }
    CHECK(map.run_end(tiles - 1) == tiles);
}

TEST_CASE("extent map: free copies move step by step until shares fit, others never") {
    const std::array before{1.0, 1.0};
    const std::array after{1.0, 3.0};
    auto map = mapped(before);
    std::vector<std::uint8_t> free(map.regions());
    for (std::size_t region = 0; region < free.size(); ++region)
        free[region] = region % 5 == 4 ? ExtentMap::none_free : std::uint8_t{1};
    const auto start = map.places();
    std::uint64_t all = 0;
    for (int round = 0; round < 12; ++round) {
        const auto moved = map.move_free_copies(free, after, room_everywhere);
        CHECK(moved <= 100 / 8);
        all += moved;
        REQUIRE_FALSE(overlaps(map, 2));
    }
    CHECK(all >= 20);
    CHECK(map.move_free_copies(free, after, room_everywhere) == 0);
    for (std::size_t region = 0; region < free.size(); ++region) {
        CHECK(map.places()[2 * region] == start[2 * region]);
        if (free[region] == ExtentMap::none_free)
            CHECK(map.places()[2 * region + 1] == start[2 * region + 1]);
    }
}

TEST_CASE("extent map: nothing moves to a drive without room, nor for a small difference") {
    const std::array before{1.0, 1.0};
    auto map = mapped(before);
    const std::vector<std::uint8_t> free(map.regions(), 0);
    const std::array other{1.0, 9.0};
    const auto full = [](std::size_t, std::uint64_t) { return false; };
    CHECK(map.move_free_copies(free, other, full) == 0);
    const std::array close{1.0, 1.03};
    CHECK(map.move_free_copies(free, close, room_everywhere) == 0);
}

TEST_CASE("extent map: places go through a table, and damaged ones are refused") {
    const std::array rates{1.0, 2.0};
    const auto map = mapped(rates);
    ExtentMap other(tiles, Durability::on, training_planes, region_tiles);
    other.load(map.places(), 2);
    CHECK(other.places() == map.places());
    CHECK(other.file_bytes(1) == map.file_bytes(1));
    auto twice = map.places();
    twice[3] = twice[0];
    CHECK_THROWS_AS(other.load(twice, 2), std::runtime_error);
    CHECK_THROWS_AS(other.load(map.places(), 1), std::runtime_error);
    auto few = map.places();
    few.pop_back();
    CHECK_THROWS_AS(other.load(few, 2), std::runtime_error);
}

}  // namespace spillway::offload::detail
