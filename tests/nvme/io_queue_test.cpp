// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/io_queue.h"

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/nvme/patterns.h"
#include "tests/nvme/queue_bench.h"

using namespace spillway::nvme;
using spillway::testing::CompletionOrder;
using spillway::testing::FakeBackend;
using spillway::testing::FakeLog;
using spillway::testing::FakeScript;
using spillway::testing::TemporaryFolder;
using testing::Bench;
using testing::contents;
using testing::fill_pattern;
using testing::has_pattern;
using testing::mebibyte;

TEST_CASE("io_queue: a request is split into operations that fly together") {
    Bench bench({}, {.depth = 32, .max_operation_bytes = mebibyte});
    fill_pattern(bench.memory(4 * mebibyte), 1);
    const IoResult result = bench.write(4 * mebibyte);
    REQUIRE(result.ok());
    REQUIRE(result.moved_bytes == 4 * mebibyte);
    REQUIRE(bench.log->operations.size() == 4);
    REQUIRE(bench.log->most_in_flight == 4);
    REQUIRE(has_pattern(contents(bench.file.path()), 1));
}

TEST_CASE("io_queue: cuts fall on the file's alignment whatever the operation size") {
    const std::size_t odd = GENERATE(std::size_t{1}, std::size_t{5000}, 3 * 4096 + 1);
    Bench bench({}, {.depth = 8, .max_operation_bytes = odd});
    fill_pattern(bench.memory(65536), 2);
    REQUIRE(bench.write(65536).ok());
    const std::size_t alignment = bench.file.request_alignment_bytes();
    for (const BackendOperation& operation : bench.log->operations) {
        REQUIRE(operation.offset_bytes % alignment == 0);
        REQUIRE(operation.length_bytes % alignment == 0);
        REQUIRE(reinterpret_cast<std::uintptr_t>(operation.data) % alignment == 0);
        REQUIRE(operation.length_bytes <= std::max(odd, alignment));
    }
    REQUIRE(has_pattern(contents(bench.file.path()), 2));
}

TEST_CASE("io_queue: 10,000 requests at depth 4 wait inside, none lost or doubled") {
    FakeScript script;
    script.depth = 4;
    script.most_completions = 3;
    script.order = CompletionOrder::shuffled;
    Bench bench(script, {.depth = 64, .max_operation_bytes = mebibyte}, DirectMode::buffered);
    constexpr std::size_t requests = 10'000;
    constexpr std::size_t bytes = 512;
    fill_pattern(bench.memory(requests * bytes), 7);
    std::vector<IoTicket> tickets;
    for (std::size_t i = 0; i < requests; ++i)
        tickets.push_back(bench.queue.submit(IoRequest::make_write(
            bench.file, i * bytes, bench.memory(requests * bytes).subspan(i * bytes, bytes))));
    for (IoTicket& ticket : tickets)
        REQUIRE(ticket.wait().moved_bytes == bytes);
    REQUIRE(bench.log->most_in_flight <= 4);
    REQUIRE(bench.log->operations.size() == requests);
    REQUIRE(bench.queue.statistics().requests == requests);
    REQUIRE(has_pattern(contents(bench.file.path()), 7));
}

TEST_CASE("io_queue: requests above the kernel's limit of one call are split") {
    const std::size_t bytes = 2048 * mebibyte * GENERATE(std::size_t{1}, std::size_t{2}) +
                              GENERATE(std::size_t{0}, std::size_t{4096}) -
                              GENERATE(std::size_t{0}, std::size_t{8192});
    // Only the splitting is looked at: the backend claims to move all and touches no memory.
    FakeScript script;
    script.result = [](const BackendOperation& operation, std::size_t) {
        const bool fits = operation.length_bytes <= 0x7ffff000;
        return std::optional(fits ? static_cast<std::int64_t>(operation.length_bytes)
                                  : std::int64_t{-EINVAL});
    };
    script.claims_only = true;
    Bench bench(script, {.depth = 4, .max_operation_bytes = ~std::size_t{0}});
    const IoRequest request{IoOperation::write, &bench.file, 0, bench.memory(4096).data(), bytes};
    const IoResult result = bench.queue.submit(request).wait();
    REQUIRE(result.ok());
    REQUIRE(result.moved_bytes == bytes);
    std::uint64_t next = 0;
    for (const BackendOperation& operation : bench.log->operations) {
        REQUIRE(operation.offset_bytes == next);
        REQUIRE(operation.data == bench.memory(4096).data() + next);
        next += operation.length_bytes;
    }
    REQUIRE(next == bytes);
}

TEST_CASE("io_queue: what some machine's drive cannot take is refused on every machine") {
    Bench bench({}, {}, GENERATE(DirectMode::required, DirectMode::automatic));
    const std::span<std::byte> memory = bench.memory(3 * 4096);
    SECTION("memory shifted by one byte, or as far as some drives put up with") {
        const std::size_t shift = GENERATE(std::size_t{1}, std::size_t{512});
        const IoResult result =
            bench.queue.submit(IoRequest::make_write(bench.file, 0, memory.subspan(shift, 4096)))
                .wait();
        REQUIRE(result.error == std::errc::invalid_argument);
        REQUIRE_THAT(result.context, Catch::Contains("memory address"));
    }
    SECTION("offset") {
        const IoResult result =
            bench.queue.submit(IoRequest::make_read(bench.file, 100, memory.first(4096))).wait();
        REQUIRE(result.error == std::errc::invalid_argument);
        REQUIRE_THAT(result.context, Catch::Contains("offset 0x64"));
    }
    SECTION("length") {
        const IoResult result =
            bench.queue.submit(IoRequest::make_write(bench.file, 0, memory.first(4097))).wait();
        REQUIRE(result.error == std::errc::invalid_argument);
        REQUIRE_THAT(result.context, Catch::Contains("length 0x1001"));
    }
    SECTION("whole sectors of a drive that has small ones") {
        const IoResult result =
            bench.queue.submit(IoRequest::make_write(bench.file, 512, memory.first(512))).wait();
        REQUIRE(result.error == std::errc::invalid_argument);
        REQUIRE_THAT(result.context, Catch::Contains("multiple of 4096"));
    }
    REQUIRE(bench.log->operations.empty());
    REQUIRE(bench.queue.statistics().requests == 0);
}

TEST_CASE("io_queue: requests that make no sense are refused, empty ones succeed") {
    Bench bench;
    const auto error_of = [&](const IoRequest& request) {
        return bench.queue.submit(request).wait().error;
    };
    REQUIRE(error_of({}) == std::errc::invalid_argument);
    REQUIRE(error_of({IoOperation::read, &bench.file, 0, nullptr, 4096}) ==
            std::errc::invalid_argument);
    REQUIRE(error_of({IoOperation::read, &bench.file, ~std::uint64_t{4095},
                      bench.memory(4096).data(), 4096}) == std::errc::invalid_argument);
    REQUIRE_FALSE(error_of({IoOperation::read, &bench.file, 0, nullptr, 0}));
    REQUIRE(bench.log->operations.empty());
    REQUIRE_THROWS_AS(IoQueue(nullptr, {}), std::invalid_argument);
    const auto make = [](IoQueue::Options options) {
        const IoQueue queue(
            std::make_unique<FakeBackend>(FakeScript{}, std::make_shared<FakeLog>()), options);
    };
    REQUIRE_THROWS_AS(make({.depth = 0, .max_operation_bytes = 1}), std::invalid_argument);
    REQUIRE_THROWS_AS(make({.depth = 1, .max_operation_bytes = 0}), std::invalid_argument);
}

TEST_CASE("io_queue: a ticket tells when its request ended and keeps the result") {
    IoTicket empty;
    REQUIRE(empty.done());
    REQUIRE(empty.wait().ok());
    FakeScript script;
    script.delay = std::chrono::milliseconds(50);
    Bench bench(script);
    IoTicket ticket = bench.queue.submit(IoRequest::make_write(bench.file, 0, bench.memory(4096)));
    REQUIRE_FALSE(ticket.done());
    REQUIRE(ticket.wait().moved_bytes == 4096);
    REQUIRE(ticket.done());
    REQUIRE(ticket.wait().moved_bytes == 4096);
    IoTicket moved = std::move(ticket);
    REQUIRE(moved.wait().moved_bytes == 4096);
}

TEST_CASE("io_queue: a ticket that goes away waits first") {
    FakeScript script;
    script.delay = std::chrono::milliseconds(30);
    Bench bench(script);
    REQUIRE(bench.write(mebibyte).ok());
    SECTION("destroyed") {
        static_cast<void>(bench.queue.submit(IoRequest::make_flush(bench.file)));
    }
    SECTION("overwritten") {
        IoTicket ticket = bench.queue.submit(IoRequest::make_flush(bench.file));
        ticket = IoTicket();
    }
    REQUIRE(bench.queue.statistics().flushes == 1);
}

TEST_CASE("io_queue: destruction waits for slow reads in flight") {
    constexpr std::size_t reads = 64;
    FakeScript script;
    script.depth = reads;
    script.delay = std::chrono::milliseconds(50);
    const TemporaryFolder folder;
    DirectFile file(folder.path() / "data", OpenMode::create_or_open, DirectMode::automatic);
    const auto log = std::make_shared<FakeLog>();
    const HugePageArena arena(2 * mebibyte);
    std::ofstream(file.path(), std::ios::binary) << std::string(reads * 4096, 'x');
    std::vector<IoTicket> tickets;
    {
        IoQueue queue(std::make_unique<FakeBackend>(script, log),
                      {.depth = reads, .max_operation_bytes = mebibyte});
        for (std::size_t i = 0; i < reads; ++i)
            tickets.push_back(queue.submit(
                IoRequest::make_read(file, i * 4096, arena.bytes().subspan(i * 8192, 4096))));
    }
    REQUIRE(log->operations.size() == reads);
    for (std::size_t i = 0; i < reads; ++i) {
        REQUIRE(tickets[i].done());
        REQUIRE(tickets[i].wait().ok());
        REQUIRE(arena.bytes()[i * 8192 + 4095] == std::byte{'x'});
        REQUIRE(arena.bytes()[i * 8192 + 4096] == std::byte{0});
    }
}

TEST_CASE("io_queue: busy times are those with something in flight") {
    FakeScript script;
    script.delay = std::chrono::milliseconds(20);
    Bench bench(script);
    REQUIRE(bench.write(4096).ok());
    const IoStatistics after_write = bench.queue.statistics();
    REQUIRE(after_write.write_busy_s >= 0.019);
    REQUIRE(after_write.read_busy_s == 0.0);
    REQUIRE(bench.read(4096).ok());
    const IoStatistics after_read = bench.queue.statistics();
    REQUIRE(after_read.read_busy_s >= 0.019);
    REQUIRE(after_read.write_busy_s == after_write.write_busy_s);
    REQUIRE(after_read.requests == 2);
    REQUIRE(bench.queue.backend_name() == "fake");
}
