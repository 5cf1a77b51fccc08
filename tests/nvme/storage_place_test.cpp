// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
//
// The places a file may lie in: sectors of 512 and 4096 bytes, memory, layers, a full disk, a disk
// that fails.
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "nvme/direct_file.h"
#include "nvme/huge_page_arena.h"
#include "nvme/io_backend.h"
#include "nvme/io_queue.h"
#include "tests/nvme/mounts.h"
#include "tests/nvme/patterns.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"

using namespace spillway::nvme;
using Catch::Contains;
using spillway::testing::skip;
using spillway::testing::TemporaryFolder;
using testing::contents;
using testing::fill_pattern;
using testing::has_pattern;
using testing::MountedFolder;
using testing::SmallDisk;

namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

std::vector<BackendKind> working_backends() {
    std::vector<BackendKind> kinds{BackendKind::threads};
    if (io_uring_refusal().empty())
        kinds.push_back(BackendKind::io_uring);
    if (libaio_refusal().empty())
        kinds.push_back(BackendKind::libaio);
    return kinds;
}

IoResult write_to(IoQueue& queue, DirectFile& file, std::uint64_t offset,
                  std::span<const std::byte> from) {
    return queue.submit(IoRequest::make_write(file, offset, from)).wait();
}

/// Written, flushed, read back by the queue and past it, with every backend.
void check_all_backends(const std::filesystem::path& folder, DirectMode direct) {
    const HugePageArena arena(4 * mebibyte);
    const auto memory = arena.bytes();
    for (const BackendKind kind : working_backends()) {
        IoQueue queue(make_backend(kind, 8), {.depth = 8, .max_operation_bytes = 128 * 1024});
        CAPTURE(folder, queue.backend_name());
        DirectFile file(folder / "data", OpenMode::create_or_open, direct);
        CHECK(((::fcntl(file.descriptor(), F_GETFL) & O_DIRECT) != 0) == file.is_direct());
        file.preallocate(memory.size());
        const auto seed = static_cast<std::uint64_t>(kind) + 50;
        fill_pattern(memory, seed);
        write_to(queue, file, 0, memory).throw_if_error();
        queue.submit(IoRequest::make_flush(file)).wait().throw_if_error();
        std::fill(memory.begin(), memory.end(), std::byte{0});
        queue.submit(IoRequest::make_read(file, 0, memory)).wait().throw_if_error();
        CHECK(has_pattern(memory, seed));
        CHECK(has_pattern(contents(file.path()), seed));
        std::filesystem::remove(file.path());
    }
}

}  // namespace

TEST_CASE("storage_place: sectors of 512 and of 4096 bytes, each with its own alignment") {
    const std::size_t sector = GENERATE(std::size_t{512}, std::size_t{4096});
    const SmallDisk disk(64, sector);
    if (!disk.ok())
        return skip(fmt::format("cannot make a loop disk with sectors of {} bytes: {}", sector,
                                disk.refusal()));
    check_all_backends(disk.path(), DirectMode::required);

    DirectFile file(disk.path() / "units", OpenMode::create_or_open, DirectMode::required);
    REQUIRE(file.alignment().offset_bytes == sector);
    const HugePageArena arena(mebibyte);
    const auto memory = arena.bytes();
    fill_pattern(memory.first(16384), 60);
    for (const BackendKind kind : working_backends()) {
        IoQueue queue(make_backend(kind, 4), {});
        CAPTURE(queue.backend_name());
        write_to(queue, file, 0, memory.first(16384)).throw_if_error();
        // What one of the two disks could not take is refused on both.
        CHECK(write_to(queue, file, 4096, memory.subspan(4096, 4096)).ok());
        CHECK(write_to(queue, file, 512, memory.first(4096)).error.value() == EINVAL);
        CHECK(write_to(queue, file, 0, memory.first(4096 + 512)).error.value() == EINVAL);
        const IoResult shifted = write_to(queue, file, 0, memory.subspan(512, 4096));
        CHECK(shifted.error.value() == EINVAL);
        CHECK_THAT(shifted.context, Contains("memory address"));
        CHECK(has_pattern(contents(file.path()), 60));
    }
}

TEST_CASE("storage_place: a folder in memory") {
    const MountedFolder mounted("tmpfs", "size=16m");
    if (!mounted.ok())
        return skip("cannot mount a tmpfs: " + mounted.refusal());
    check_all_backends(mounted.path(), DirectMode::automatic);
    check_all_backends(mounted.path(), DirectMode::buffered);

    // Where direct I/O falls back, requests that it would refuse are refused all the same.
    const HugePageArena arena(mebibyte);
    IoQueue queue(make_backend(BackendKind::automatic, 4), {});
    DirectFile fallen(mounted.path() / "data", OpenMode::create_or_open, DirectMode::automatic);
    CHECK(fallen.request_alignment_bytes() == 4096);
    CHECK(write_to(queue, fallen, 0, arena.bytes().subspan(1, 4096)).error.value() == EINVAL);
    DirectFile buffered(mounted.path() / "data", OpenMode::open_existing, DirectMode::buffered);
    CHECK(buffered.request_alignment_bytes() == 1);
    CHECK(write_to(queue, buffered, 3, arena.bytes().subspan(1, 5)).ok());
}

TEST_CASE("storage_place: a folder of layers, as containers have it") {
    const TemporaryFolder layers;
    for (const char* name : {"lower", "upper", "work"})
        std::filesystem::create_directory(layers.path() / name);
    const std::string base = layers.path().string();
    const MountedFolder mounted(
        "overlay",
        fmt::format("lowerdir={0}/lower,upperdir={0}/upper,workdir={0}/work", base).c_str());
    if (!mounted.ok())
        return skip("cannot mount an overlay: " + mounted.refusal());
    check_all_backends(mounted.path(), DirectMode::automatic);
}

TEST_CASE("storage_place: reserved room stays writable when others fill the disk") {
    const SmallDisk disk(64);
    if (!disk.ok())
        return skip("cannot make a 64 MiB loop disk: " + disk.refusal());
    DirectFile file(disk.path() / "data", OpenMode::create_or_open, DirectMode::required);
    file.preallocate(8 * mebibyte);
    const HugePageArena arena(8 * mebibyte);
    DirectFile other(disk.path() / "other", OpenMode::create_or_open, DirectMode::required);
    IoQueue filler(make_backend(BackendKind::threads, 4), {});
    IoResult filled;
    for (std::uint64_t at = 0; filled.ok() && at < 64 * mebibyte; at += mebibyte)
        filled = write_to(filler, other, at, arena.bytes().first(mebibyte));
    REQUIRE(filled.error == std::errc::no_space_on_device);

    for (const BackendKind kind : working_backends()) {
        IoQueue queue(make_backend(kind, 8), {});
        CAPTURE(queue.backend_name());
        const auto seed = static_cast<std::uint64_t>(kind) + 70;
        fill_pattern(arena.bytes(), seed);
        CHECK(write_to(queue, file, 0, arena.bytes()).ok());
        CHECK(queue.submit(IoRequest::make_flush(file)).wait().ok());
        CHECK(has_pattern(contents(file.path()), seed));
        const IoResult beyond =
            write_to(queue, file, 8 * mebibyte, arena.bytes().first(8 * mebibyte));
        CHECK(beyond.error == std::errc::no_space_on_device);
        CHECK_THAT(beyond.context, Contains(file.path().string()) && Contains("free space"));
    }
}

TEST_CASE("storage_place: a drive that loses writes is found out, at the write or for good") {
    // The disk believes in 64 MiB; the memory behind it ends before.
    const MountedFolder mounted("tmpfs", "size=24m");
    if (!mounted.ok())
        return skip("cannot mount a tmpfs: " + mounted.refusal());
    const SmallDisk disk(64, 512, mounted.path());
    if (!disk.ok())
        return skip("cannot make a loop disk in a tmpfs: " + disk.refusal());
    const bool is_direct = GENERATE(true, false);
    DirectFile file(disk.path() / "data", OpenMode::create_or_open,
                    is_direct ? DirectMode::required : DirectMode::buffered);
    const HugePageArena arena(40 * mebibyte);
    fill_pattern(arena.bytes(), 80);
    IoQueue queue(make_backend(BackendKind::automatic, 8), {});
    const IoResult written = write_to(queue, file, 0, arena.bytes());
    if (is_direct) {
        REQUIRE_FALSE(written.ok());
        CHECK(written.moved_bytes < arena.size_bytes());
        CHECK_THAT(written.context, Contains(file.path().string()) && Contains("offset"));
        return;
    }
    REQUIRE(written.ok());  // into the page cache
    const IoResult flushed = queue.submit(IoRequest::make_flush(file)).wait();
    REQUIRE_FALSE(flushed.ok());
    CHECK_THAT(flushed.context, Contains("may be lost"));
    CHECK(file.flush_error() == flushed.error.value());
    CHECK_FALSE(queue.submit(IoRequest::make_flush(file)).wait().ok());
    CHECK_THROWS_AS(file.sync_data(), std::system_error);
}
