// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
//
// What every backend owes, swept over all of them.
#include "nvme/io_backend.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "nvme/huge_page_arena.h"
#include "nvme/io_queue.h"
#include "tests/nvme/mounts.h"
#include "tests/nvme/patterns.h"
#include "tests/support/fake_backend.h"
#include "tests/support/recording_backend.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"

using namespace spillway::nvme;
using spillway::testing::FakeBackend;
using spillway::testing::FakeLog;
using spillway::testing::FakeScript;
using spillway::testing::RecordedDisk;
using spillway::testing::RecordingBackend;
using spillway::testing::skip;
using spillway::testing::TemporaryFolder;
using testing::fill_pattern;
using testing::fill_with;
using testing::has_only;
using testing::has_pattern;

namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

std::unique_ptr<IoBackend> make_named(const std::string& name, std::size_t depth) {
    if (name == "io_uring")
        return make_backend(BackendKind::io_uring, depth);
    if (name == "libaio")
        return make_backend(BackendKind::libaio, depth);
    if (name == "threads")
        return make_backend(BackendKind::threads, depth);
    if (name == "recording")
        return std::make_unique<RecordingBackend>(std::make_shared<RecordedDisk>(), depth);
    FakeScript script;
    script.depth = depth;
    return std::make_unique<FakeBackend>(script, std::make_shared<FakeLog>());
}

/// False, with the reason shown, where this machine cannot run the backend.
bool is_available(const std::string& name) {
    const std::string refusal = name == "io_uring" ? io_uring_refusal()
                                : name == "libaio" ? libaio_refusal()
                                                   : std::string();
    if (!refusal.empty())
        skip(name + ": " + refusal);
    return refusal.empty();
}

double processor_seconds() {
    timespec now = {};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Fraction of the file's pages that are in the page cache.
double resident_fraction(const DirectFile& file) {
    const std::size_t bytes = file.size_bytes();
    void* mapped = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.descriptor(), 0);
    REQUIRE(mapped != MAP_FAILED);
    std::vector<unsigned char> pages((bytes + 4095) / 4096);
    REQUIRE(::mincore(mapped, bytes, pages.data()) == 0);
    ::munmap(mapped, bytes);
    std::size_t resident = 0;
    for (const unsigned char page : pages)
        resident += page & 1U;
    return static_cast<double>(resident) / static_cast<double>(pages.size());
}

}  // namespace

TEST_CASE("io_backend: every backend moves, splits, mixes and flushes alike") {
    const std::string name =
        GENERATE(as<std::string>{}, "io_uring", "libaio", "threads", "fake", "recording");
    if (!is_available(name))
        return;
    const auto direct = GENERATE(DirectMode::automatic, DirectMode::buffered);
    const std::size_t depth = GENERATE(std::size_t{1}, std::size_t{3}, std::size_t{32});
    const TemporaryFolder folder;
    DirectFile file(folder.path() / "data", OpenMode::create_or_open, direct);
    file.preallocate(8 * mebibyte);
    const HugePageArena arena(16 * mebibyte);
    const auto written = arena.bytes().first(8 * mebibyte);
    const auto read = arena.bytes().subspan(8 * mebibyte, 8 * mebibyte);
    IoQueue queue(make_named(name, depth), {.depth = depth, .max_operation_bytes = 256 * 1024});
    REQUIRE(queue.backend_name() == name);

    fill_pattern(written, 20);
    constexpr std::size_t piece = mebibyte + 4096;
    std::vector<IoTicket> tickets;
    for (std::size_t at = 0; at < written.size(); at += piece)
        tickets.push_back(queue.submit(IoRequest::make_write(
            file, at, written.subspan(at, std::min(piece, written.size() - at)))));
    for (IoTicket& ticket : tickets)
        ticket.wait().throw_if_error();
    queue.submit(IoRequest::make_flush(file)).wait().throw_if_error();
    // Reads of what is there while other parts are overwritten with the same bytes.
    tickets.clear();
    for (std::size_t at = 0; at < read.size(); at += mebibyte) {
        tickets.push_back(queue.submit(IoRequest::make_read(file, at, read.subspan(at, mebibyte))));
        tickets.push_back(queue.submit(IoRequest::make_write(
            file, (at + 3 * mebibyte) % written.size(),
            written.subspan((at + 3 * mebibyte) % written.size(), mebibyte))));
    }
    for (IoTicket& ticket : tickets)
        REQUIRE(ticket.wait().moved_bytes == mebibyte);
    REQUIRE(has_pattern(read, 20));
    const IoStatistics statistics = queue.statistics();
    REQUIRE(statistics.read_bytes == 8 * mebibyte);
    REQUIRE(statistics.written_bytes == 16 * mebibyte);
    REQUIRE(statistics.flushes == 1);
}

TEST_CASE("io_backend: each kind has its name") {
    const std::vector<std::pair<std::string_view, BackendKind>> kinds{
        {"auto", BackendKind::automatic},
        {"io_uring", BackendKind::io_uring},
        {"libaio", BackendKind::libaio},
        {"threads", BackendKind::threads},
    };
    REQUIRE(backend_names().size() == kinds.size());
    for (std::size_t i = 0; i < kinds.size(); ++i) {
        CHECK(backend_names()[i] == kinds[i].first);
        CHECK(backend_kind(kinds[i].first) == kinds[i].second);
    }
    CHECK_FALSE(backend_kind("dma"));
    CHECK_FALSE(backend_kind(""));
}

TEST_CASE("io_backend: the kernel's errors come back with their names") {
    const std::string name = GENERATE(as<std::string>{}, "io_uring", "libaio", "threads");
    if (!is_available(name))
        return;
    const TemporaryFolder folder;
    std::ofstream(folder.path() / "data", std::ios::binary) << std::string(8192, 'x');
    DirectFile file(folder.path() / "data", OpenMode::open_read_only, DirectMode::automatic);
    const HugePageArena arena(mebibyte);
    IoQueue queue(make_named(name, 8), {});
    const IoResult written =
        queue.submit(IoRequest::make_write(file, 0, arena.bytes().first(4096))).wait();
    REQUIRE(written.error == std::errc::bad_file_descriptor);
    REQUIRE_THAT(written.context, Catch::Contains("EBADF"));
    const IoResult beyond =
        queue.submit(IoRequest::make_read(file, 4096, arena.bytes().first(8192))).wait();
    REQUIRE(beyond.error.value() == ENODATA);
    REQUIRE(beyond.moved_bytes == 4096);
    // Memory that is not there: the kernel's EFAULT, not a crash of the process.
    const IoRequest bad{IoOperation::read, &file, 0, reinterpret_cast<std::byte*>(4096), 4096};
    REQUIRE(queue.submit(bad).wait().error == std::errc::bad_address);
}

TEST_CASE("io_backend: a disk that fills up is ENOSPC at the write, and the queue lives on") {
    const std::string name = GENERATE(as<std::string>{}, "io_uring", "libaio", "threads");
    if (!is_available(name))
        return;
    const testing::SmallDisk disk(64);
    if (!disk.ok())
        return skip("cannot make a 64 MiB loop disk: " + disk.refusal());
    DirectFile file(disk.path() / "data", OpenMode::create_or_open, DirectMode::automatic);
    const HugePageArena arena(80 * mebibyte);
    IoQueue queue(make_named(name, 8), {});
    const IoResult result = queue.submit(IoRequest::make_write(file, 0, arena.bytes())).wait();
    REQUIRE(result.error == std::errc::no_space_on_device);
    REQUIRE(result.moved_bytes < arena.size_bytes());
    REQUIRE_THAT(result.context, Catch::Contains("ENOSPC") && Catch::Contains("free space"));
    REQUIRE(queue.submit(IoRequest::make_read(file, 0, arena.bytes().first(mebibyte))).wait().ok());
}

TEST_CASE("io_backend: direct I/O leaves the page cache empty") {
    const std::string name = GENERATE(as<std::string>{}, "io_uring", "libaio", "threads");
    if (!is_available(name))
        return;
    const TemporaryFolder folder;
    DirectFile file(folder.path() / "data", OpenMode::create_or_open, DirectMode::automatic);
    if (!file.is_direct())
        return skip("the build tree's file system has no direct I/O");
    const HugePageArena arena(64 * mebibyte);
    IoQueue queue(make_named(name, 32), {});
    for (std::size_t at = 0; at < 256 * mebibyte; at += arena.size_bytes())
        queue.submit(IoRequest::make_write(file, at, arena.bytes())).wait().throw_if_error();
    queue.submit(IoRequest::make_read(file, 0, arena.bytes())).wait().throw_if_error();
    REQUIRE(resident_fraction(file) < 0.01);
}

TEST_CASE("io_backend: an idle queue and a waiting one burn no processor") {
    const std::string name = GENERATE(as<std::string>{}, "io_uring", "libaio", "threads");
    if (!is_available(name))
        return;
    const IoQueue queue(make_named(name, 8), {});
    const double before = processor_seconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    REQUIRE(processor_seconds() - before < 0.05);
}

TEST_CASE("io_backend: a wake before wait() is not lost") {
    const std::string name =
        GENERATE(as<std::string>{}, "io_uring", "libaio", "threads", "fake", "recording");
    if (!is_available(name))
        return;
    const auto backend = make_named(name, 4);
    std::array<BackendCompletion, 4> completions;
    for (int round = 0; round < 3; ++round) {
        backend->wake();
        REQUIRE(backend->wait(completions) == 0);
    }
    std::thread waker([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        backend->wake();
    });
    REQUIRE(backend->wait(completions) == 0);
    waker.join();
}

TEST_CASE("io_backend: a backend takes no more than its depth") {
    const std::string name =
        GENERATE(as<std::string>{}, "io_uring", "libaio", "threads", "fake", "recording");
    if (!is_available(name))
        return;
    const TemporaryFolder folder;
    DirectFile file(folder.path() / "data", OpenMode::create_or_open, DirectMode::buffered);
    const auto backend = make_named(name, 4);
    std::vector<std::byte> memory(4096, std::byte{7});
    std::vector<BackendOperation> operations;
    for (std::uint64_t id = 0; id < 8; ++id)
        operations.push_back({id, IoOperation::write, &file, id * 512, memory.data(), 512});
    std::size_t given = 0;
    std::size_t ended = 0;
    std::array<int, 8> times = {};
    while (ended < operations.size()) {
        given += backend->submit(std::span(operations).subspan(given));
        REQUIRE(given - ended <= 4);
        std::array<BackendCompletion, 2> completions;
        const std::size_t count = backend->wait(completions);
        for (std::size_t i = 0; i < count; ++i) {
            REQUIRE(completions[i].result == 512);
            ++times[completions[i].id];
        }
        ended += count;
    }
    REQUIRE(times == std::array{1, 1, 1, 1, 1, 1, 1, 1});
}

TEST_CASE("io_backend: a backend destroyed with work in flight moves nothing afterwards") {
    const std::string name = GENERATE(as<std::string>{}, "io_uring", "libaio", "threads");
    if (!is_available(name))
        return;
    const TemporaryFolder folder;
    DirectFile file(folder.path() / "data", OpenMode::create_or_open, DirectMode::automatic);
    const HugePageArena arena(64 * mebibyte);
    {
        IoQueue queue(make_named(name, 32), {});
        fill_with(arena.bytes(), std::byte{1});
        queue.submit(IoRequest::make_write(file, 0, arena.bytes())).wait().throw_if_error();
    }
    fill_with(arena.bytes(), std::byte{0});
    std::vector<BackendOperation> reads;
    for (std::uint64_t id = 0; id < 32; ++id)
        reads.push_back({id, IoOperation::read, &file, id * 2 * mebibyte,
                         arena.bytes().data() + id * 2 * mebibyte, 2 * mebibyte});
    auto backend = make_named(name, 32);
    REQUIRE(backend->submit(reads) == 32);
    std::array<BackendCompletion, 1> first;
    REQUIRE(backend->wait(first) == 1);  // by now all have begun
    backend.reset();
    // A byte of each block, in no time: what arrives later is seen later.
    std::array<std::byte, 32> ends = {};
    const auto end_of = [&](std::size_t block) {
        return arena.bytes()[(block + 1) * 2 * mebibyte - 1];
    };
    for (std::size_t i = 0; i < ends.size(); ++i)
        ends[i] = end_of(i);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    for (std::size_t i = 0; i < ends.size(); ++i)
        REQUIRE(end_of(i) == ends[i]);
    fill_with(arena.bytes(), std::byte{2});
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    REQUIRE(has_only(arena.bytes(), std::byte{2}));
}

TEST_CASE("io_backend: many threads share a queue") {
    const std::string name = GENERATE(as<std::string>{}, "io_uring", "libaio", "threads", "fake");
    if (!is_available(name))
        return;
    const TemporaryFolder folder;
    DirectFile file(folder.path() / "data", OpenMode::create_or_open, DirectMode::automatic);
    const HugePageArena arena(4 * mebibyte);
    fill_pattern(arena.bytes(), 21);
    IoQueue queue(make_named(name, 8), {.depth = 8, .max_operation_bytes = 16384});
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < 4; ++t)
        threads.emplace_back([&, t] {
            for (std::size_t at = t * 16384; at < arena.size_bytes(); at += 4 * 16384)
                queue.submit(IoRequest::make_write(file, at, arena.bytes().subspan(at, 16384)))
                    .wait()
                    .throw_if_error();
        });
    for (std::thread& thread : threads)
        thread.join();
    REQUIRE(queue.statistics().requests == arena.size_bytes() / 16384);
    REQUIRE(has_pattern(testing::contents(file.path()), 21));
}

TEST_CASE("io_backend: 10,000 requests at depth 4 wait inside, none lost or doubled") {
    const std::string name = GENERATE(as<std::string>{}, "io_uring", "libaio", "threads");
    if (!is_available(name))
        return;
    const TemporaryFolder folder;
    DirectFile file(folder.path() / "data", OpenMode::create_or_open, DirectMode::buffered);
    constexpr std::size_t requests = 10'000;
    constexpr std::size_t bytes = 512;
    const HugePageArena arena(requests * bytes);
    const auto memory = arena.bytes().first(requests * bytes);
    fill_pattern(memory, 22);
    IoQueue queue(make_named(name, 4), {.depth = 4, .max_operation_bytes = mebibyte});
    std::vector<IoTicket> tickets;
    for (std::size_t i = 0; i < requests; ++i)
        tickets.push_back(
            queue.submit(IoRequest::make_write(file, i * bytes, memory.subspan(i * bytes, bytes))));
    for (IoTicket& ticket : tickets)
        REQUIRE(ticket.wait().moved_bytes == bytes);
    REQUIRE(queue.statistics().written_bytes == requests * bytes);
    REQUIRE(has_pattern(testing::contents(file.path()), 22));
}
