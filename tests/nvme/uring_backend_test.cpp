// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
//
// Memory and files that the ring knows in advance.
#include "nvme/uring_backend.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <liburing.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nvme/buffer_pool.h"
#include "nvme/huge_page_arena.h"
#include "nvme/io_queue.h"
#include "tests/nvme/patterns.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"

using namespace spillway::nvme;
using Catch::Contains;
using spillway::testing::skip;
using spillway::testing::TemporaryFolder;
using testing::fill_pattern;
using testing::has_pattern;

namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

bool is_available() {
    const std::string refusal = io_uring_refusal();
    if (!refusal.empty())
        skip("io_uring: " + refusal);
    return refusal.empty();
}

/// What is at `key` of /proc/self/fdinfo of the only ring of this process, "" if nothing is.
std::string ring_info(const std::string& key) {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code gone;
        if (std::filesystem::read_symlink(entry.path(), gone) != "anon_inode:[io_uring]")
            continue;
        std::ifstream info("/proc/self/fdinfo/" + entry.path().filename().string());
        for (std::string line; std::getline(info, line);)
            if (line.rfind(key + ":\t", 0) == 0)
                return line.substr(key.size() + 2);
    }
    return {};
}

/// Runs `body` in a child that may lock so many bytes of memory, with a folder to write to; it must
/// give 0.
void check_limited_child(std::size_t locked_bytes,
                         const std::function<int(const std::filesystem::path&)>& body) {
    if (!is_available())
        return;
    const TemporaryFolder folder;
    std::filesystem::permissions(folder.path(), std::filesystem::perms::all);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        ::alarm(20);
        const rlimit tight = {locked_bytes, locked_bytes};
        // Root is exempt from the limit; an ordinary user is not.
        if (::setrlimit(RLIMIT_MEMLOCK, &tight) != 0 || (::geteuid() == 0 && ::setuid(65534) != 0))
            ::_exit(77);
        ::_exit(body(folder.path()));
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        return skip("the limit or the user cannot be changed here");
    REQUIRE(WIFEXITED(status));
    REQUIRE(WEXITSTATUS(status) == 0);
}

/// Writes and reads back `memory` in pieces of `step`, whose ends need not be the arenas'.
void check_round_trip(IoQueue& queue, DirectFile& file, std::span<std::byte> memory,
                      std::size_t step) {
    fill_pattern(memory, 31);
    std::vector<IoTicket> tickets;
    for (std::size_t at = 0; at < memory.size(); at += step)
        tickets.push_back(queue.submit(IoRequest::make_write(
            file, at, memory.subspan(at, std::min(step, memory.size() - at)))));
    for (IoTicket& ticket : tickets)
        ticket.wait().throw_if_error();
    queue.submit(IoRequest::make_flush(file)).wait().throw_if_error();
    std::fill(memory.begin(), memory.end(), std::byte{0});
    queue.submit(IoRequest::make_read(file, 0, memory)).wait().throw_if_error();
    REQUIRE(has_pattern(memory, 31));
}

}  // namespace

TEST_CASE("uring_backend: registered memory and files move the same bytes") {
    if (!is_available())
        return;
    const TemporaryFolder folder;
    DirectFile first(folder.path() / "first", OpenMode::create_or_open, DirectMode::automatic);
    DirectFile second(folder.path() / "second", OpenMode::create_or_open, DirectMode::automatic);
    DirectFile stranger(folder.path() / "third", OpenMode::create_or_open, DirectMode::automatic);
    const HugePageArena arena(8 * mebibyte);
    const auto memory = arena.bytes();
    IoQueue::Options options;
    options.max_operation_bytes = mebibyte;
    // Out of order, and with a gap: operations on the edges and in the gap are plain ones.
    options.fixed.memory = {memory.subspan(5 * mebibyte), memory.first(3 * mebibyte)};
    options.fixed.files = {&second, &first};
    IoQueue queue(make_backend(BackendKind::io_uring, 16), options);
    if (!queue.notes().empty())
        return skip(queue.notes().front());
    CHECK(ring_info("UserBufs") == "2");
    CHECK(ring_info("UserFiles") == "2");
    for (DirectFile* file : {&first, &second, &stranger})
        check_round_trip(queue, *file, memory, mebibyte / 2 + 4096);
    fill_pattern(memory, 31);
    REQUIRE(has_pattern(testing::contents(first.path()), 31));
    REQUIRE(has_pattern(testing::contents(second.path()), 31));
}

TEST_CASE("uring_backend: memory beyond the limit is a note, and everything still works") {
    check_limited_child(65536, [](const std::filesystem::path& folder) {
        BufferPool pool({.buffer_bytes = 4 * mebibyte, .buffers = 1});
        const BufferLease lease = pool.acquire();
        IoQueue::Options options;
        options.fixed.memory = pool.pieces();
        IoQueue queue(make_backend(BackendKind::io_uring, 8), options);
        const std::string note = queue.notes().size() == 1 ? queue.notes().front() : "";
        for (const char* part : {"ENOMEM", "65536", "4194304", "ulimit", "are not registered"})
            if (note.find(part) == std::string::npos)
                return 1;
        DirectFile file(folder / "data", OpenMode::create_or_open, DirectMode::automatic);
        fill_pattern(lease.bytes(), 32);
        if (!queue.submit(IoRequest::make_write(file, 0, lease.bytes())).wait().ok())
            return 2;
        return has_pattern(testing::contents(file.path()), 32) ? 0 : 3;
    });
}

TEST_CASE("uring_backend: of memory beyond the limit as much is registered as it allows") {
    // Less than it all, more than half: the rest is for the ring itself, on older kernels.
    check_limited_child(7 * mebibyte, [](const std::filesystem::path& folder) {
        BufferPool pool({.buffer_bytes = 4 * mebibyte, .buffers = 2});
        IoQueue::Options options;
        options.fixed.memory = pool.pieces();
        IoQueue queue(make_backend(BackendKind::io_uring, 8), options);
        const std::string note = queue.notes().size() == 1 ? queue.notes().front() : "";
        if (note.find("registered for 4194304 of 8388608 bytes") == std::string::npos)
            return 1;
        if (ring_info("UserBufs") != "1")
            return 2;
        DirectFile file(folder / "data", OpenMode::create_or_open, DirectMode::automatic);
        const std::vector<BufferLease> leases = [&] {
            std::vector<BufferLease> all;
            while (auto lease = pool.try_acquire())
                all.push_back(std::move(lease));
            return all;
        }();
        for (const BufferLease& lease : leases) {
            fill_pattern(lease.bytes(), 33);
            if (!queue.submit(IoRequest::make_write(file, 0, lease.bytes())).wait().ok())
                return 3;
            std::fill(lease.bytes().begin(), lease.bytes().end(), std::byte{0});
            if (!queue.submit(IoRequest::make_read(file, 0, lease.bytes())).wait().ok() ||
                !has_pattern(lease.bytes(), 33))
                return 4;
        }
        return leases.size() == 2 ? 0 : 5;
    });
}

TEST_CASE("uring_backend: a thread of the kernel can hand over requests, where it is able to") {
    if (!is_available())
        return;
    const TemporaryFolder folder;
    DirectFile file(folder.path() / "data", OpenMode::create_or_open, DirectMode::automatic);
    DirectFile stranger(folder.path() / "other", OpenMode::create_or_open, DirectMode::automatic);
    const HugePageArena arena(4 * mebibyte);
    const bool is_old_kernel = GENERATE(false, true);
    UringOptions uring{.submission = UringOptions::Submission::kernel_thread};
    uring.hidden_features = is_old_kernel ? IORING_FEAT_SQPOLL_NONFIXED : 0;
    IoQueue::Options options{.depth = 8, .max_operation_bytes = 128 * 1024};
    options.fixed.files = {&file};
    IoQueue queue(make_backend(BackendKind::io_uring, 8, uring), options);
    for (DirectFile* one : {&file, &stranger})
        check_round_trip(queue, *one, arena.bytes(), mebibyte / 2 + 4096);
    if (is_old_kernel) {
        REQUIRE(queue.notes().size() == 1);
        CHECK_THAT(queue.notes()[0], Contains("SQPOLL") && Contains("5.11"));
        CHECK(ring_info("SqThread") == "-1");
    } else {
        REQUIRE(queue.notes().empty());
        CHECK(std::stoi(ring_info("SqThread")) > 0);
    }
}

TEST_CASE(
    "uring_backend: a polled thread's ring destroyed in the middle moves nothing afterwards") {
    if (!is_available())
        return;
    const TemporaryFolder folder;
    DirectFile file(folder.path() / "data", OpenMode::create_or_open, DirectMode::automatic);
    const HugePageArena arena(32 * mebibyte);
    {
        IoQueue queue(make_backend(BackendKind::io_uring, 8), {});
        std::fill(arena.bytes().begin(), arena.bytes().end(), std::byte{1});
        queue.submit(IoRequest::make_write(file, 0, arena.bytes())).wait().throw_if_error();
    }
    auto backend = make_backend(BackendKind::io_uring, 32,
                                {.submission = UringOptions::Submission::kernel_thread});
    std::vector<BackendOperation> reads;
    for (std::uint64_t id = 0; id < 32; ++id)
        reads.push_back({id, IoOperation::read, &file, id * mebibyte,
                         arena.bytes().data() + id * mebibyte, mebibyte});
    REQUIRE(backend->submit(reads) == 32);
    backend->wake();
    std::vector<BackendCompletion> completions(32);
    static_cast<void>(backend->wait(completions));
    backend.reset();
    std::fill(arena.bytes().begin(), arena.bytes().end(), std::byte{2});
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    REQUIRE(std::all_of(arena.bytes().begin(), arena.bytes().end(),
                        [](std::byte one) { return one == std::byte{2}; }));
}

TEST_CASE("uring_backend: a drive that cannot be polled is a note, and everything still works") {
    if (!is_available())
        return;
    const TemporaryFolder folder;
    const auto direct = GENERATE(DirectMode::automatic, DirectMode::buffered);
    DirectFile file(folder.path() / "data", OpenMode::create_or_open, direct);
    DirectFile stranger(folder.path() / "other", OpenMode::create_or_open, direct);
    file.preallocate(4 * mebibyte);
    const HugePageArena arena(4 * mebibyte);
    IoQueue::Options options{.depth = 8, .max_operation_bytes = 128 * 1024};
    options.fixed = {{arena.bytes()}, {&file}};
    IoQueue queue(
        make_backend(BackendKind::io_uring, 8, {.completion = UringOptions::Completion::polled}),
        options);
    if (direct == DirectMode::buffered) {
        REQUIRE(queue.notes().size() == 1);
        CHECK_THAT(queue.notes()[0], Contains("IOPOLL") && Contains("no direct file"));
    } else if (!queue.notes().empty()) {
        CHECK(queue.notes().size() == 1);
        CHECK_THAT(queue.notes()[0], Contains("IOPOLL"));
    }
    for (DirectFile* one : {&file, &stranger})
        check_round_trip(queue, *one, arena.bytes(), mebibyte / 2 + 4096);
}

TEST_CASE("uring_backend: other backends take fixed resources without a word") {
    const TemporaryFolder folder;
    DirectFile file(folder.path() / "data", OpenMode::create_or_open, DirectMode::automatic);
    const HugePageArena arena(2 * mebibyte);
    IoQueue::Options options;
    options.fixed = {{arena.bytes()}, {&file}};
    IoQueue queue(make_backend(BackendKind::threads, 4), options);
    REQUIRE(queue.notes().empty());
    check_round_trip(queue, file, arena.bytes(), mebibyte);
}

TEST_CASE("io_backend: what automatic comes to is said in one line") {
    const std::string choice = automatic_choice();
    const auto backend = make_backend(BackendKind::automatic, 2);
    REQUIRE(choice.rfind(backend->name(), 0) == 0);
    REQUIRE(choice.find('\n') == std::string::npos);
    if (backend->name() != "io_uring")
        REQUIRE_THAT(choice, Contains("io_uring"));
}
