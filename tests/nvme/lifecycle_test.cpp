// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
//
// What is left of queues that are made and destroyed, in peace and in the middle of work.
#include <cstddef>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "nvme/direct_file.h"
#include "nvme/huge_page_arena.h"
#include "nvme/io_backend.h"
#include "nvme/io_queue.h"
#include "tests/nvme/patterns.h"
#include "tests/support/holdings.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/watchdog.h"

using namespace spillway::nvme;
using spillway::testing::Holdings;
using spillway::testing::memory_is_own;
using spillway::testing::skip;
using spillway::testing::TemporaryFolder;
using spillway::testing::Watchdog;
using testing::fill_pattern;
using testing::fill_with;
using testing::has_only;
using testing::has_pattern;

namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

// What leaks by the cycle shows after fewer where all is slower.
constexpr int cycles = memory_is_own ? 500 : 50;

bool is_missing(BackendKind kind) {
    const std::string refusal = kind == BackendKind::io_uring ? io_uring_refusal()
                                : kind == BackendKind::libaio ? libaio_refusal()
                                                              : std::string();
    if (!refusal.empty())
        skip(refusal);
    return !refusal.empty();
}

/// Opens, writes, reads and closes.
void live_once(BackendKind kind, const std::filesystem::path& path) {
    DirectFile file(path, OpenMode::create_or_open, DirectMode::automatic);
    const HugePageArena arena(1);
    const auto memory = arena.bytes().first(65536);
    IoQueue::Options options{.depth = 8, .max_operation_bytes = 16384};
    options.fixed = {{arena.bytes()}, {&file}};
    options.deadline_s = 1000;
    options.on_overdue = [](std::span<const PendingIo>) {};
    IoQueue queue(make_backend(kind, 8), options);
    queue.submit(IoRequest::make_write(file, 0, memory)).wait().throw_if_error();
    queue.submit(IoRequest::make_read(file, 0, memory)).wait().throw_if_error();
}

}  // namespace

TEST_CASE("lifecycle: hundreds of queues leave no descriptor, thread, mapping or memory behind") {
    const auto kind = GENERATE(BackendKind::io_uring, BackendKind::libaio, BackendKind::threads);
    if (is_missing(kind))
        return;
    const TemporaryFolder folder;
    constexpr int warm_up = cycles / 10;
    for (int i = 0; i < warm_up; ++i)
        live_once(kind, folder.path() / "data");
    const Holdings before;
    for (int i = 0; i < cycles; ++i)
        live_once(kind, folder.path() / "data");
    const Holdings after;
    CHECK(after.descriptors == before.descriptors);
    CHECK(after.threads == before.threads);
    if (memory_is_own) {
        // Less than one small thing a cycle: what the allocator keeps varies.
        CHECK(after.mappings - before.mappings < cycles / 10);
        CHECK(after.resident_bytes - before.resident_bytes < cycles * std::ptrdiff_t{4096});
    }
}

TEST_CASE("lifecycle: a queue destroyed, or left by an exception, ends its 64 reads first") {
    const auto kind = GENERATE(BackendKind::io_uring, BackendKind::libaio, BackendKind::threads);
    if (is_missing(kind))
        return;
    const Watchdog watchdog(std::chrono::seconds(60));
    const bool by_exception = GENERATE(false, true);
    constexpr std::size_t reads = 64;
    const TemporaryFolder folder;
    DirectFile file(folder.path() / "data", OpenMode::create_or_open, DirectMode::automatic);
    const HugePageArena arena(reads * mebibyte);
    fill_pattern(arena.bytes(), 90);
    std::vector<IoTicket> tickets;
    try {
        IoQueue queue(make_backend(kind, reads), {.depth = reads});
        queue.submit(IoRequest::make_write(file, 0, arena.bytes())).wait().throw_if_error();
        fill_with(arena.bytes(), std::byte{0});
        for (std::size_t i = 0; i < reads; ++i)
            tickets.push_back(queue.submit(IoRequest::make_read(
                file, i * mebibyte, arena.bytes().subspan(i * mebibyte, mebibyte))));
        if (by_exception)
            throw std::runtime_error("in the middle of it");
    } catch (const std::runtime_error&) {
    }
    // The queue is gone: all has arrived, and nothing arrives any more.
    for (IoTicket& ticket : tickets) {
        REQUIRE(ticket.done());
        REQUIRE(ticket.wait().moved_bytes == mebibyte);
    }
    REQUIRE(has_pattern(arena.bytes(), 90));
    fill_with(arena.bytes(), std::byte{7});
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    REQUIRE(has_only(arena.bytes(), std::byte{7}));
}
