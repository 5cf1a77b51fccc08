// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
//
// Kernels and systems that refuse libaio, played by the functions it is called through.
#include "nvme/detail/libaio_backend.h"

#include <array>
#include <cerrno>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include <catch2/catch.hpp>

#include "nvme/direct_file.h"
#include "nvme/huge_page_arena.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"

using namespace spillway::nvme;
using Catch::Contains;
using spillway::testing::skip;
using spillway::testing::TemporaryFolder;

namespace {

/// Setting up is refused beyond 5 requests, as where other programs hold nearly all.
int set_up_five(int events, aio_context_t* context) {
    if (events > 5)
        return -EAGAIN;
    *context = 1;
    return 0;
}

int set_up_none(int, aio_context_t*) {
    return -EAGAIN;
}

int destroy_nothing(aio_context_t) {
    return 0;
}

int submit_nothing(aio_context_t, long, iocb**) {
    return -EAGAIN;
}

int no_events(aio_context_t, long, long, io_event*, timespec*) {
    return 0;
}

detail::LibaioCalls played(int (*set_up)(int, aio_context_t*)) {
    return {set_up, destroy_nothing, submit_nothing, no_events, nullptr};
}

}  // namespace

TEST_CASE("libaio_backend: a missing library is named with the package that has it") {
    constexpr std::array names{"libspillway-absent.so.1", "libspillway-absent.so.2"};
    try {
        static_cast<void>(detail::load_libaio(names));
        FAIL("loaded what is not there");
    } catch (const std::system_error& error) {
        CHECK(error.code().value() == ENOENT);
        CHECK_THAT(error.what(), Contains(names[0]) && Contains(names[1]) && Contains("libaio1"));
    }
}

TEST_CASE("libaio_backend: a library without the functions is refused by the function's name") {
    constexpr std::array names{"libc.so.6"};
    CHECK_THROWS_WITH(detail::load_libaio(names), Contains("libc.so.6") && Contains("io_setup"));
}

TEST_CASE("libaio_backend: used-up requests are reported with the limit and its value") {
    try {
        const detail::LibaioBackend backend(64, played(set_up_none));
        FAIL("set up without a request to spare");
    } catch (const std::system_error& error) {
        CHECK(error.code().value() == EAGAIN);
        CHECK_THAT(error.what(), Contains("fs.aio-max-nr is ") && Contains("fs.aio-nr ") &&
                                     Contains("sysctl fs.aio-max-nr=") && !Contains("unknown"));
    }
}

TEST_CASE("libaio_backend: where few requests are left the depth shrinks to them") {
    const detail::LibaioBackend backend(64, played(set_up_five));
    CHECK(backend.depth() == 4);
}

TEST_CASE("libaio_backend: EAGAIN of io_submit is back-pressure, nothing is taken") {
    const TemporaryFolder folder;
    DirectFile file(folder.path() / "data", OpenMode::create_or_open, DirectMode::buffered);
    detail::LibaioBackend backend(4, played(set_up_five));
    const std::vector<BackendOperation> operations(
        2, BackendOperation{0, IoOperation::flush, &file, 0, nullptr, 0});
    CHECK(backend.submit(operations) == 0);
}

TEST_CASE("libaio_backend: an operation the kernel refuses ends alone, those behind it go on") {
    std::unique_ptr<IoBackend> backend;
    try {
        backend = std::make_unique<detail::LibaioBackend>(8);
    } catch (const std::system_error& error) {
        return skip(std::string("libaio: ") + error.what());
    }
    const TemporaryFolder folder;
    DirectFile file(folder.path() / "data", OpenMode::create_or_open, DirectMode::automatic);
    DirectFile read_only(folder.path() / "data", OpenMode::open_read_only, DirectMode::automatic);
    const HugePageArena arena(1 << 20);
    std::byte* const data = arena.bytes().data();
    const std::vector<BackendOperation> operations{
        {0, IoOperation::write, &file, 0, data, 4096},
        {1, IoOperation::write, &read_only, 4096, data, 4096},
        {2, IoOperation::write, &read_only, 8192, data, 4096},
        {3, IoOperation::write, &file, 12288, data, 4096},
    };
    CHECK(backend->submit(operations) == 4);
    std::array<std::int64_t, 4> results = {};
    for (std::size_t ended = 0; ended < operations.size();) {
        std::array<BackendCompletion, 2> completions;
        const std::size_t count = backend->wait(completions);
        for (std::size_t i = 0; i < count; ++i)
            results[completions[i].id] = completions[i].result;
        ended += count;
    }
    CHECK(results == std::array<std::int64_t, 4>{4096, -EBADF, -EBADF, 4096});
}
