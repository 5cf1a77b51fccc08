// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/sim_memory.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "cuda/device.h"

using spillway::cuda::OutOfDeviceMemory;
using spillway::cuda::SimMemory;

namespace {

constexpr std::size_t page = 4096;

bool all(const std::byte* data, std::size_t bytes, std::byte value) {
    return std::all_of(data, data + bytes, [&](std::byte b) { return b == value; });
}

}  // namespace

TEST_CASE("runs are first fit, page-aligned and joined again when freed") {
    SimMemory memory("sim", 8 * page + 100);
    CHECK(memory.capacity_bytes() == 8 * page);
    std::byte* const a = memory.allocate(1);
    std::byte* const b = memory.allocate(2 * page);
    std::byte* const c = memory.allocate(page + 1);
    CHECK(reinterpret_cast<std::uintptr_t>(a) % page == 0);
    CHECK(b == a + page);
    CHECK(c == a + 3 * page);
    CHECK(memory.free_bytes() == 3 * page);
    memory.deallocate(b);
    CHECK(memory.allocate(page) == b);
    memory.deallocate(b);
    memory.deallocate(a);
    memory.deallocate(c);
    CHECK(memory.free_bytes() == 8 * page);
    CHECK(memory.peak_bytes() == 5 * page);
    CHECK(memory.allocate(8 * page) == a);
}

TEST_CASE("a full or fragmented memory says what was asked, what is free and in which runs") {
    SimMemory memory("sim:16KiB", 4 * page);
    std::byte* const a = memory.allocate(page);
    std::byte* const b = memory.allocate(page);
    std::byte* const c = memory.allocate(page);
    memory.deallocate(a);
    memory.deallocate(c);
    CHECK(memory.allocated(b, page));
    try {
        static_cast<void>(memory.allocate(2 * page + 1));
        FAIL("allocated more than the longest run");
    } catch (const OutOfDeviceMemory& error) {
        CHECK(error.asked_bytes == 2 * page + 1);
        CHECK(error.free_bytes == 3 * page);
        CHECK_THAT(error.what(), Catch::Contains("sim:16KiB") && Catch::Contains("8193") &&
                                     Catch::Contains("12288") &&
                                     Catch::Contains("longest run of them 8192"));
    }
    CHECK_THROWS_AS(memory.allocate(SIZE_MAX), OutOfDeviceMemory);
}

TEST_CASE("freed memory is poisoned, its neighbours are not") {
    SimMemory memory("sim", 4 * page);
    std::byte* const a = memory.allocate(page);
    std::byte* const b = memory.allocate(page);
    std::fill_n(a, 2 * page, std::byte{1});
    memory.deallocate(a);
    CHECK(all(a, page, SimMemory::poison));
    CHECK(all(b, page, std::byte{1}));
    memory.deallocate(a);
    memory.deallocate(b + 1);
    CHECK(memory.free_bytes() == 3 * page);
}

TEST_CASE("memory knows what lies in it and what is allocated") {
    SimMemory memory("sim", 4 * page);
    std::byte* const a = memory.allocate(100);
    std::byte* const b = memory.allocate(page);
    CHECK(memory.allocated(a, page));
    CHECK(memory.allocated(b + 10, page - 10));
    CHECK_FALSE(memory.allocated(a, page + 1));
    CHECK_FALSE(memory.allocated(b, SIZE_MAX));
    CHECK_FALSE(memory.allocated(b + page, 1));
    std::byte elsewhere{};
    CHECK_FALSE(memory.allocated(&elsewhere, 1));
    CHECK_FALSE(memory.overlaps(&elsewhere, 1));
    CHECK(memory.overlaps(a - 1, 2));
    CHECK_FALSE(memory.overlaps(a - 1, 1));
    CHECK(memory.overlaps(a + 4 * page - 1, 1));
    CHECK_FALSE(memory.overlaps(a + 4 * page, 1));
}

TEST_CASE("random allocations never overlap and leave nothing behind") {
    SimMemory memory("sim", 64 * page);
    std::mt19937 random(7);
    std::map<std::byte*, std::size_t> live;
    for (int round = 0; round < 5000; ++round) {
        if (random() % 2 == 0 || live.empty()) {
            const std::size_t bytes = 1 + random() % (9 * page);
            try {
                std::byte* const data = memory.allocate(bytes);
                const auto next = live.lower_bound(data);
                if (next != live.end())
                    REQUIRE(data + bytes <= next->first);
                if (next != live.begin())
                    REQUIRE(std::prev(next)->first + std::prev(next)->second <= data);
                live.emplace(data, bytes);
            } catch (const OutOfDeviceMemory&) {
                REQUIRE(!live.empty());
            }
        } else {
            const auto victim = std::next(live.begin(), static_cast<long>(random() % live.size()));
            memory.deallocate(victim->first);
            live.erase(victim);
        }
    }
    for (const auto& [data, bytes] : live)
        memory.deallocate(data);
    CHECK(memory.free_bytes() == 64 * page);
    CHECK(memory.allocate(64 * page) != nullptr);
}

TEST_CASE("threads may allocate and free at once") {
    SimMemory memory("sim", 64 * page);
    const auto churn = [&](int id) {
        for (int round = 0; round < 300; ++round) {
            std::byte* const data = memory.allocate(3 * page);
            std::fill_n(data, 3 * page, static_cast<std::byte>(id));
            if (!all(data, 3 * page, static_cast<std::byte>(id)))
                throw std::runtime_error("two threads share memory");
            memory.deallocate(data);
        }
    };
    std::vector<std::thread> threads;
    for (int id = 1; id <= 4; ++id)
        threads.emplace_back(churn, id);
    for (auto& thread : threads)
        thread.join();
    CHECK(memory.free_bytes() == 64 * page);
}
