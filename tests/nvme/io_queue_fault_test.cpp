// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
//
// What becomes of requests whose operations end short, fail, or meet a backend that breaks.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "nvme/io_queue.h"
#include "tests/nvme/patterns.h"
#include "tests/nvme/queue_bench.h"

using namespace spillway::nvme;
using spillway::testing::CompletionOrder;
using spillway::testing::FakeScript;
using testing::Bench;
using testing::contents;
using testing::fill_pattern;
using testing::has_pattern;
using testing::mebibyte;

namespace {

/// The given result for the first operation; the others are honest.
FakeScript first_result(std::int64_t result) {
    FakeScript script;
    script.result = [result](const BackendOperation&,
                             std::size_t number) -> std::optional<std::int64_t> {
        if (number == 0)
            return result;
        return std::nullopt;
    };
    return script;
}

FakeScript every_result(std::int64_t result) {
    FakeScript script;
    script.result = [result](const BackendOperation&, std::size_t) {
        return std::optional(result);
    };
    return script;
}

}  // namespace

TEST_CASE("io_queue: short transfers are finished at an aligned point, each byte once") {
    const auto direct = GENERATE(DirectMode::automatic, DirectMode::buffered);
    const std::int64_t length = 65536;
    const std::int64_t short_count =
        GENERATE(as<std::int64_t>{}, 1, 511, 513, 4096, 32768, 65536 - 512, 65536 - 1);
    Bench bench(first_result(short_count), {}, direct);
    fill_pattern(bench.memory(65536), 3);

    SECTION("writes") {
        const IoResult result = bench.write(65536);
        REQUIRE(result.ok());
        REQUIRE(result.moved_bytes == 65536);
        REQUIRE(has_pattern(contents(bench.file.path()), 3));
        REQUIRE(bench.queue.statistics().written_bytes == 65536);
    }
    SECTION("reads") {
        std::ofstream(bench.file.path(), std::ios::binary)
            .write(reinterpret_cast<const char*>(bench.memory(65536).data()), length);
        std::fill(bench.memory(65536).begin(), bench.memory(65536).end(), std::byte{0});
        const IoResult result = bench.read(65536);
        REQUIRE(result.ok());
        REQUIRE(result.moved_bytes == 65536);
        REQUIRE(has_pattern(bench.memory(65536), 3));
        REQUIRE(bench.queue.statistics().read_bytes == 65536);
    }
    REQUIRE(bench.log->operations.size() == 2);
    const auto alignment = static_cast<std::int64_t>(bench.file.alignment().offset_bytes);
    const std::int64_t resumed = short_count / alignment * alignment;
    REQUIRE(bench.log->operations[1].offset_bytes == static_cast<std::uint64_t>(resumed));
    REQUIRE(bench.log->operations[1].length_bytes == static_cast<std::size_t>(length - resumed));
}

TEST_CASE("io_queue: requests whose first completion is short all finish") {
    FakeScript script;
    script.result = [](const BackendOperation& operation,
                       std::size_t) -> std::optional<std::int64_t> {
        // A remainder starts inside a piece of 8192, so it is told from a first attempt.
        if (operation.offset_bytes % 8192 == 0)
            return 4096;
        return std::nullopt;
    };
    script.order = CompletionOrder::shuffled;
    Bench bench(script, {.depth = 4, .max_operation_bytes = 8192});
    fill_pattern(bench.memory(mebibyte), 4);
    std::vector<IoTicket> tickets;
    for (std::size_t at = 0; at < mebibyte; at += 8192)
        tickets.push_back(bench.queue.submit(
            IoRequest::make_write(bench.file, at, bench.memory(mebibyte).subspan(at, 8192))));
    for (IoTicket& ticket : tickets)
        REQUIRE(ticket.wait().moved_bytes == 8192);
    REQUIRE(bench.log->operations.size() == 2 * mebibyte / 8192);
    REQUIRE(has_pattern(contents(bench.file.path()), 4));
}

TEST_CASE("io_queue: interrupted and refused operations are tried again") {
    const int error = GENERATE(EINTR, EAGAIN);
    Bench bench(first_result(-error));
    fill_pattern(bench.memory(4096), 5);
    REQUIRE(bench.write(4096).ok());
    REQUIRE(bench.log->operations.size() == 2);
    REQUIRE(has_pattern(contents(bench.file.path()), 5));
}

TEST_CASE("io_queue: what never succeeds is an error in the end") {
    Bench bench(every_result(-EAGAIN));
    const IoResult result = bench.write(4096);
    REQUIRE(result.error == std::errc::resource_unavailable_try_again);
    REQUIRE_THAT(result.context, Catch::Contains("EAGAIN"));
}

TEST_CASE("io_queue: an error names operation, path, offset, length and errno") {
    const auto [error, name] =
        GENERATE(table<int, const char*>({{EIO, "EIO"}, {ENOSPC, "ENOSPC"}, {EINVAL, "EINVAL"}}));
    Bench bench(every_result(-error));
    const bool is_write = GENERATE(true, false);
    const IoResult result = is_write ? bench.write(8192, 4096) : bench.read(8192, 4096);
    REQUIRE(result.error == std::error_code(error, std::generic_category()));
    REQUIRE(result.moved_bytes == 0);
    REQUIRE_THAT(result.context, Catch::Contains(name) && Catch::Contains("8192 bytes") &&
                                     Catch::Contains("offset 4096") &&
                                     Catch::Contains(is_write ? "write" : "read") &&
                                     Catch::Contains(bench.file.path().string()));
    REQUIRE_THROWS_AS(result.throw_if_error(), std::system_error);
    REQUIRE_THROWS_WITH(result.throw_if_error(), Catch::Contains(result.context));
    // The queue goes on: an error belongs to its request.
    REQUIRE(bench.queue.submit(IoRequest::make_write(bench.file, 0, {})).wait().ok());
}

TEST_CASE("io_queue: a write that moves nothing and a read beyond the end are errors") {
    SECTION("0 from a write") {
        Bench bench(every_result(0));
        const IoResult result = bench.write(4096);
        REQUIRE(result.error == std::errc::io_error);
        REQUIRE_THAT(result.context, Catch::Contains("0 bytes"));
    }
    SECTION("end of file inside a read") {
        const auto direct = GENERATE(DirectMode::automatic, DirectMode::buffered);
        const std::size_t file_bytes =
            GENERATE(std::size_t{0}, std::size_t{4096}, std::size_t{5000});
        Bench bench({}, {}, direct);
        std::ofstream(bench.file.path(), std::ios::binary) << std::string(file_bytes, 'x');
        const IoResult result = bench.read(16384);
        REQUIRE(result.error.value() == ENODATA);
        REQUIRE(result.moved_bytes <= file_bytes);
        REQUIRE_THAT(result.context,
                     Catch::Contains("ends before") && Catch::Contains(bench.file.path().string()));
    }
}

TEST_CASE("io_queue: an error ends its request once, with the bytes that did move") {
    FakeScript script;
    script.result = [](const BackendOperation& operation,
                       std::size_t) -> std::optional<std::int64_t> {
        if (operation.offset_bytes == 2 * mebibyte)
            return -EIO;
        return std::nullopt;
    };
    Bench bench(script, {.depth = 2, .max_operation_bytes = mebibyte});
    const IoResult result = bench.write(8 * mebibyte);
    REQUIRE(result.error == std::errc::io_error);
    REQUIRE_THAT(result.context, Catch::Contains(std::to_string(2 * mebibyte)));
    // Those begun before the error is known; the rest of the request is not even tried.
    REQUIRE(bench.log->operations.size() <= 5);
    REQUIRE(result.moved_bytes >= 2 * mebibyte);
    REQUIRE(result.moved_bytes < 5 * mebibyte);
}

TEST_CASE("io_queue: a failed flush is reported and never repeated") {
    const int error = GENERATE(EIO, EINTR, EAGAIN);
    Bench bench(first_result(-error));
    const IoResult failed = bench.queue.submit(IoRequest::make_flush(bench.file)).wait();
    REQUIRE(failed.error.value() == error);
    REQUIRE_THAT(failed.context, Catch::Contains("flush of " + bench.file.path().string()));
    REQUIRE(bench.log->operations.size() == 1);
    REQUIRE(bench.queue.statistics().flushes == 0);
    // The next one would "succeed": it is not even tried, by the queue or the file itself.
    const IoResult later = bench.queue.submit(IoRequest::make_flush(bench.file)).wait();
    REQUIRE(later.error.value() == error);
    REQUIRE_THAT(later.context, Catch::Contains("an earlier one failed"));
    REQUIRE_THROWS_AS(bench.file.sync_data(), std::system_error);
    REQUIRE(bench.log->operations.size() == 1);
    // It stays with the file when that moves, and ends where the file is opened anew.
    DirectFile moved(std::move(bench.file));
    REQUIRE_FALSE(bench.queue.submit(IoRequest::make_flush(moved)).wait().ok());
    DirectFile anew(moved.path(), OpenMode::open_existing, DirectMode::automatic);
    moved = std::move(anew);
    REQUIRE(bench.queue.submit(IoRequest::make_flush(moved)).wait().ok());
    REQUIRE(bench.queue.statistics().flushes == 1);
}

TEST_CASE("io_queue: of flushes under way together none counts once one has failed") {
    FakeScript script = first_result(-EIO);
    script.delay = std::chrono::milliseconds(5);
    Bench bench(script);
    std::vector<IoTicket> tickets;
    for (int i = 0; i < 3; ++i)
        tickets.push_back(bench.queue.submit(IoRequest::make_flush(bench.file)));
    for (IoTicket& ticket : tickets)
        REQUIRE(ticket.wait().error == std::errc::io_error);
    REQUIRE(bench.queue.statistics().flushes == 0);
}

TEST_CASE("io_queue: what a backend does not take stays queued exactly once") {
    FakeScript script;
    auto call = std::make_shared<int>(0);
    script.accept = [call](std::size_t) { return ++*call == 1 ? std::size_t{3} : std::size_t{1}; };
    const auto order =
        GENERATE(CompletionOrder::in_order, CompletionOrder::reversed, CompletionOrder::shuffled);
    script.order = order;
    Bench bench(script, {.depth = 8, .max_operation_bytes = 4096});
    fill_pattern(bench.memory(8 * 4096), 6);
    REQUIRE(bench.write(8 * 4096).moved_bytes == 8 * 4096);
    REQUIRE(bench.log->operations.size() == 8);
    REQUIRE(has_pattern(contents(bench.file.path()), 6));
}

TEST_CASE("io_queue: a backend that takes nothing for a while is waited for") {
    FakeScript script;
    auto refusals = std::make_shared<int>(20);
    script.accept = [refusals](std::size_t offered) {
        return (*refusals)-- > 0 ? std::size_t{0} : offered;
    };
    Bench bench(script);
    REQUIRE(bench.write(4096).ok());
    REQUIRE(bench.log->operations.size() == 1);
}

TEST_CASE("io_queue: a broken backend ends every ticket with an error") {
    FakeScript script;
    script.delay = std::chrono::milliseconds(5);
    auto calls = std::make_shared<int>(0);
    const auto breaks_at_third = [calls](const char* what) {
        if (++*calls == 3)
            throw std::system_error(EBADF, std::generic_category(), what);
    };
    std::string expected;
    SECTION("in submit") {
        expected = "submit broke";
        script.accept = [breaks_at_third](std::size_t) {
            breaks_at_third("submit broke");
            return std::size_t{2};
        };
    }
    SECTION("in wait") {
        expected = "wait broke";
        script.before_wait = [breaks_at_third] { breaks_at_third("wait broke"); };
    }
    Bench bench(script, {.depth = 4, .max_operation_bytes = 4096});
    std::vector<IoTicket> tickets;
    for (std::size_t i = 0; i < 100; ++i)
        tickets.push_back(
            bench.queue.submit(IoRequest::make_write(bench.file, 0, bench.memory(16384))));
    std::size_t failed = 0;
    for (IoTicket& ticket : tickets) {
        const IoResult result = ticket.wait();
        if (result.ok())
            continue;
        ++failed;
        REQUIRE(result.error.value() == EBADF);
        REQUIRE_THAT(result.context, Catch::Contains("fake backend broke down") &&
                                         Catch::Contains(expected) &&
                                         Catch::Contains(bench.file.path().string()));
    }
    REQUIRE(failed >= 95);
    // Later requests end at once in the same way.
    REQUIRE(bench.write(4096).error.value() == EBADF);
}

TEST_CASE("io_queue: a backend that lies is found out") {
    Bench bench(every_result(8192));
    const IoResult result = bench.write(4096);
    REQUIRE(result.error.value() == EPROTO);
    REQUIRE(result.moved_bytes == 0);
}
