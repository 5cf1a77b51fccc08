// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/gds_backend.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <dlfcn.h>

#include "nvme/detail/cufile_calls.h"
#include "nvme/huge_page_arena.h"
#include "nvme/io_queue.h"
#include "tests/nvme/patterns.h"
#include "tests/support/cufile_stand_in.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"

using namespace spillway::nvme;
using Catch::Contains;
using spillway::testing::CuFileStandIn;
using spillway::testing::skip;
using spillway::testing::StandInDeviceMemory;
using spillway::testing::TemporaryFolder;
using testing::contents;
using testing::fill_pattern;
using testing::has_pattern;

namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

detail::CuFileCalls stand_in_calls() {
    const std::string path = CuFileStandIn::path();
    const std::array names{path.c_str()};
    return detail::load_cufile(names);
}

/// A queue to the stand-in with a direct file and GPU memory; nothing of it is left registered.
struct GdsBench {
    explicit GdsBench(bool is_fixed = false, IoQueue::Options options = {}, GdsOptions gds = {}) {
        cufile.reset();
        if (is_fixed) {
            options.fixed.files = {&file};
            options.fixed.device_memory = {memory.span(0, memory.contents().size())};
        }
        queue = std::make_unique<IoQueue>(
            std::make_unique<GdsBackend>(8, stand_in_calls(), std::move(gds)), options);
    }
    ~GdsBench() {
        queue.reset();
        CHECK(cufile.registered_bytes == 0);
        CHECK(cufile.registered_handles == 0);
        CHECK(cufile.faults == std::vector<std::string>{});
        cufile.reset();
    }
    GdsBench(const GdsBench&) = delete;
    GdsBench& operator=(const GdsBench&) = delete;

    CuFileStandIn& cufile = CuFileStandIn::instance();
    StandInDeviceMemory memory{8 * mebibyte};
    TemporaryFolder folder;
    DirectFile file{folder.path() / "data", OpenMode::create_or_open, DirectMode::required};
    std::unique_ptr<IoQueue> queue;
};

bool has_no_direct_io() {
    try {
        const TemporaryFolder folder;
        const DirectFile file(folder.path() / "data", OpenMode::create_or_open,
                              DirectMode::required);
        return false;
    } catch (const std::system_error& refused) {
        skip(refused.what());
        return true;
    }
}

}  // namespace

TEST_CASE("gds_backend: GPU memory goes to the file and comes back, in any order, every byte") {
    if (has_no_direct_io())
        return;
    const bool is_fixed = GENERATE(false, true);
    GdsBench bench(is_fixed, {.depth = 8, .max_operation_bytes = 256 * 1024});
    CHECK(bench.queue->notes().empty());
    CHECK(bench.queue->backend_name() == "gds");
    CHECK(bench.cufile.registered_bytes == (is_fixed ? 8 * mebibyte : 0));
    fill_pattern(bench.memory.contents().first(4 * mebibyte), 71);
    std::vector<IoTicket> tickets;
    for (std::size_t at = 0; at < 4 * mebibyte; at += mebibyte)
        tickets.push_back(bench.queue->submit(
            IoRequest::make_device_write(bench.file, at, bench.memory.span(at, mebibyte))));
    for (IoTicket& ticket : tickets)
        REQUIRE(ticket.wait().moved_bytes == mebibyte);
    bench.queue->submit(IoRequest::make_flush(bench.file)).wait().throw_if_error();
    REQUIRE(has_pattern(contents(bench.file.path()), 71));
    bench.queue
        ->submit(IoRequest::make_device_read(
            bench.file, 0, bench.memory.span(4 * mebibyte, 4 * mebibyte), ReadPriority::prefetch))
        .wait()
        .throw_if_error();
    REQUIRE(has_pattern(bench.memory.contents().subspan(4 * mebibyte), 71));
    CHECK(bench.cufile.transfers == 32);
    CHECK(bench.cufile.transfers_from_registered == (is_fixed ? 32 : 0));
    CHECK(bench.cufile.registered_handles == (is_fixed ? 1 : 0));
}

TEST_CASE("gds_backend: host memory takes the usual way through it") {
    if (has_no_direct_io())
        return;
    GdsBench bench;
    const HugePageArena arena(mebibyte);
    const auto memory = arena.bytes().first(mebibyte);
    fill_pattern(memory, 72);
    bench.queue->submit(IoRequest::make_write(bench.file, 0, memory)).wait().throw_if_error();
    std::fill(memory.begin(), memory.end(), std::byte{0});
    bench.queue->submit(IoRequest::make_read(bench.file, 0, memory)).wait().throw_if_error();
    CHECK(has_pattern(memory, 72));
    CHECK(bench.cufile.transfers == 0);
}

TEST_CASE("gds_backend: short transfers are finished, each byte once") {
    if (has_no_direct_io())
        return;
    GdsBench bench(GENERATE(false, true));
    bench.cufile.result = [](std::size_t number) {
        return number % 2 == 0 ? std::optional<std::int64_t>(4096) : std::nullopt;
    };
    fill_pattern(bench.memory.contents().first(mebibyte), 73);
    const auto written =
        bench.queue
            ->submit(IoRequest::make_device_write(bench.file, 0, bench.memory.span(0, mebibyte)))
            .wait();
    CHECK(written.moved_bytes == mebibyte);
    const auto read = bench.queue
                          ->submit(IoRequest::make_device_read(
                              bench.file, 0, bench.memory.span(2 * mebibyte, mebibyte)))
                          .wait();
    CHECK(read.moved_bytes == mebibyte);
    CHECK(has_pattern(bench.memory.contents().subspan(2 * mebibyte, mebibyte), 73));
    CHECK(bench.cufile.transfers == 4);
}

TEST_CASE("gds_backend: cuFile's errors come back with errno, meaning, path and offset") {
    if (has_no_direct_io())
        return;
    const auto [code, name, text] = GENERATE(table<std::int64_t, const char*, const char*>({
        {-1, "ENOSPC", "free space"},
        {-5015, "EINVAL", "CUDA context"},
        {-5008, "EOPNOTSUPP", "no GPUDirect Storage"},
        {-5029, "ENODEV", "no GPU"},
        {-5044, "EIO", "cuFile failed"},
    }));
    GdsBench bench;
    bench.cufile.transfer_errno = ENOSPC;
    const std::int64_t answer = code;
    bench.cufile.result = [answer](std::size_t) { return std::optional(answer); };
    const auto result =
        bench.queue
            ->submit(IoRequest::make_device_write(bench.file, 8192, bench.memory.span(0, 4096)))
            .wait();
    CHECK_THAT(result.context, Contains(name) && Contains(text) && Contains("offset 8192") &&
                                   Contains(bench.file.path().string()));
    CHECK(result.moved_bytes == 0);
}

TEST_CASE(
    "gds_backend: many threads on a file that was not introduced register it once at a time") {
    if (has_no_direct_io())
        return;
    GdsBench bench(false, {.depth = 8, .max_operation_bytes = 4096});
    std::vector<std::thread> threads;
    std::atomic<int> failed = 0;
    for (std::size_t t = 0; t < 4; ++t)
        threads.emplace_back([&, t] {
            for (std::size_t i = 0; i < 50; ++i)
                failed += bench.queue
                                  ->submit(IoRequest::make_device_write(
                                      bench.file, (i * 4 + t) * 4096,
                                      bench.memory.span((i * 4 + t) * 4096, 4096)))
                                  .wait()
                                  .ok()
                              ? 0
                              : 1;
        });
    for (std::thread& thread : threads)
        thread.join();
    CHECK(failed == 0);
    CHECK(bench.cufile.transfers == 200);
}

TEST_CASE("gds_backend: what cuFile does not take beforehand is a note, and all works without it") {
    if (has_no_direct_io())
        return;
    CuFileStandIn& cufile = CuFileStandIn::instance();
    cufile.reset();
    cufile.most_registered_bytes = 3 * mebibyte;
    const TemporaryFolder folder;
    DirectFile file(folder.path() / "data", OpenMode::create_or_open, DirectMode::required);
    DirectFile buffered(folder.path() / "other", OpenMode::create_or_open, DirectMode::buffered);
    const StandInDeviceMemory memory(4 * mebibyte);
    {
        IoQueue::Options options;
        options.fixed.files = {&buffered};
        options.fixed.device_memory = {memory.span(0, 2 * mebibyte),
                                       memory.span(2 * mebibyte, 2 * mebibyte)};
        IoQueue queue(std::make_unique<GdsBackend>(4, stand_in_calls()), options);
        REQUIRE(queue.notes().size() == 2);
        CHECK_THAT(queue.notes()[0], Contains("from byte 2097152 on") && Contains("5036"));
        CHECK_THAT(queue.notes()[1], Contains("other") && Contains("not open for direct I/O"));
        fill_pattern(memory.contents(), 74);
        const auto whole = memory.span(0, 4 * mebibyte);
        queue.submit(IoRequest::make_device_write(file, 0, whole)).wait().throw_if_error();
        CHECK(has_pattern(contents(file.path()), 74));
        const auto refused =
            queue.submit(IoRequest::make_device_write(buffered, 0, memory.span(0, 4096))).wait();
        CHECK(refused.error.value() == EINVAL);
        CHECK_THAT(refused.context, Contains("not open for direct I/O"));
    }
    CHECK(cufile.registered_bytes == 0);
    CHECK(cufile.faults.empty());
    cufile.reset();
}

TEST_CASE("gds_backend: its threads enter the owner's CUDA context before they call cuFile") {
    if (has_no_direct_io())
        return;
    std::atomic<int> entered = 0;
    thread_local bool is_inside = false;
    std::atomic<int> outside = 0;
    GdsOptions options;
    options.enter_thread = [&] {
        is_inside = true;
        ++entered;
    };
    GdsBench bench(false, {}, options);
    bench.cufile.result = [&](std::size_t) -> std::optional<std::int64_t> {
        outside += is_inside ? 0 : 1;
        return std::nullopt;
    };
    for (std::size_t i = 0; i < 20; ++i)
        bench.queue
            ->submit(IoRequest::make_device_write(bench.file, i * 4096, bench.memory.span(0, 4096)))
            .wait()
            .throw_if_error();
    CHECK(entered >= 1);
    CHECK(entered <= 8);
    CHECK(outside == 0);
}

TEST_CASE("gds_backend: other backends refuse GPU memory before anything touches it") {
    const StandInDeviceMemory memory(4096);
    const TemporaryFolder folder;
    DirectFile file(folder.path() / "data", OpenMode::create_or_open, DirectMode::automatic);
    IoQueue queue(make_backend(BackendKind::automatic, 4), {});
    const bool is_read = GENERATE(true, false);
    const auto request = is_read ? IoRequest::make_device_read(file, 0, memory.span(0, 4096))
                                 : IoRequest::make_device_write(file, 0, memory.span(0, 4096));
    const IoResult result = queue.submit(request).wait();
    CHECK(result.error == std::errc::operation_not_supported);
    CHECK_THAT(result.context, Contains("GPU memory") && Contains(queue.backend_name().data()) &&
                                   Contains("gds") && Contains(file.path().string()));
    CHECK(queue.statistics().requests == 0);
}

TEST_CASE("gds_backend: the real path is told, and never more than is known") {
    const auto [status, control, feature, path, text] =
        GENERATE(table<unsigned, unsigned, unsigned, GdsReport::Path, const char*>({
            {0U, 2U, 0U, GdsReport::Path::compatibility, "through host memory"},
            {0U, 0U, 0U, GdsReport::Path::none, "allow_compat_mode"},
            {1U << 4U, 2U, 0U, GdsReport::Path::undecided, "does not tell which"},
            {1U << 4U, 0U, 0U, GdsReport::Path::direct, "past host memory, by nvidia-fs 2.17"},
            {0U, 2U, 1U << 4U, GdsReport::Path::undecided, "peer-to-peer"},
            {1U << 5U, 2U, 1U << 3U, GdsReport::Path::compatibility, "through host memory"},
        }));
    CuFileStandIn& cufile = CuFileStandIn::instance();
    cufile.reset();
    cufile.status_flags = status;
    cufile.control_flags = control;
    cufile.feature_flags = feature;
    const GdsReport report = gds_report(stand_in_calls());
    CHECK(report.path == path);
    CHECK_THAT(report.text, Contains(text));
    cufile.properties_code = 5001;
    CHECK(gds_report(stand_in_calls()).path == GdsReport::Path::none);
    cufile.reset();
}

TEST_CASE("gds_backend: a driver that does not open, or is open already") {
    CuFileStandIn& cufile = CuFileStandIn::instance();
    cufile.reset();
    cufile.driver_code = 5001;
    CHECK_THROWS_WITH(GdsBackend(4, stand_in_calls()),
                      Contains("nvidia-fs driver is not loaded") && Contains("5001"));
    CHECK_THAT(gds_report(stand_in_calls()).text,
               Contains("no: EOPNOTSUPP") && Contains("not loaded"));
    cufile.driver_code = 5026;
    CHECK_NOTHROW(GdsBackend(4, stand_in_calls()));
    cufile.reset();
}

TEST_CASE("gds_backend: a machine without cuFile says what is missing") {
    const std::array absent{"libcufile-of-nowhere.so.0"};
    CHECK_THROWS_WITH(detail::load_cufile(absent),
                      Contains("libcufile-of-nowhere.so.0") && Contains("not installed"));
    const std::array other{"libdl.so.2"};
    CHECK_THROWS_WITH(detail::load_cufile(other), Contains("cuFileDriverOpen"));
    CHECK_THROWS_AS(make_gds_backend(0), std::invalid_argument);
    if (::dlopen("libcuda.so.1", RTLD_NOW) != nullptr)
        return skip("this machine has a CUDA driver");
    CHECK_THROWS_WITH(make_gds_backend(4), Contains("gds backend") && Contains("libcuda.so.1") &&
                                               Contains("another backend"));
    CHECK(gds_report().path == GdsReport::Path::none);
    CHECK_THAT(gds_report().text, Contains("no: ENOENT") && Contains("CUDA driver"));
}
