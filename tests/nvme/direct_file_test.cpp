// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/direct_file.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "tests/nvme/mounts.h"
#include "tests/nvme/patterns.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"

using namespace spillway::nvme;
using spillway::nvme::testing::MountedFolder;
using spillway::testing::skip;
using spillway::testing::TemporaryFolder;

namespace {

struct Refusal {
    int error = 0;
    std::string text;
};

/// The errno and text that `action` throws; error 0 when it does not.
Refusal refusal_of(const std::function<void()>& action) {
    try {
        action();
    } catch (const std::system_error& error) {
        return {error.code().value(), error.what()};
    }
    return {};
}

Refusal refused_open(const std::filesystem::path& path, OpenMode mode,
                     DirectMode direct = DirectMode::automatic) {
    return refusal_of([&] { const DirectFile file(path, mode, direct); });
}

bool has_direct_flag(const DirectFile& file) {
    return (::fcntl(file.descriptor(), F_GETFL) & O_DIRECT) != 0;
}

}  // namespace

TEST_CASE("direct_file: is_direct is what the descriptor says") {
    const TemporaryFolder folder;
    const auto direct = GENERATE(DirectMode::automatic, DirectMode::required, DirectMode::buffered);
    const DirectFile file(folder.path() / "data", OpenMode::create_or_open, direct);
    REQUIRE(file.is_direct() == has_direct_flag(file));
    REQUIRE(file.is_direct() == (direct != DirectMode::buffered));
    const IoAlignment alignment = file.alignment();
    if (file.is_direct()) {
        REQUIRE(alignment.offset_bytes >= 512);
        REQUIRE(4096 % alignment.offset_bytes == 0);
    } else {
        REQUIRE(alignment.memory_bytes == 1);
        REQUIRE(alignment.offset_bytes == 1);
    }
}

TEST_CASE("direct_file: a file system that refuses direct I/O falls back or is named") {
    // A regular file whose file system has no direct I/O, without mounting anything.
    const std::filesystem::path path = "/proc/self/comm";
    const DirectFile file(path, OpenMode::open_existing, DirectMode::automatic);
    REQUIRE_FALSE(file.is_direct());
    REQUIRE_FALSE(has_direct_flag(file));
    const Refusal refused = refused_open(path, OpenMode::open_existing, DirectMode::required);
    REQUIRE(refused.error == EINVAL);
    REQUIRE_THAT(refused.text, Catch::Contains("/proc/self/comm") && Catch::Contains("proc)"));
}

TEST_CASE("direct_file: a tmpfs says what it really does") {
    struct statfs status = {};
    constexpr long tmpfs_magic = 0x01021994;
    if (::statfs("/dev/shm", &status) != 0 || status.f_type != tmpfs_magic)
        return skip("there is no tmpfs at /dev/shm");
    const std::filesystem::path path = "/dev/shm/spillway-direct-file-test";
    {
        const DirectFile file(path, OpenMode::create_or_open, DirectMode::automatic);
        REQUIRE(file.is_direct() == has_direct_flag(file));
    }
    std::filesystem::remove(path);
}

TEST_CASE("direct_file: a refused `required` leaves no new file behind") {
    const MountedFolder mounted("ramfs", "");
    if (!mounted.ok())
        return skip("cannot mount a ramfs: " + mounted.refusal());
    const auto path = mounted.path() / "data";
    const Refusal refused = refused_open(path, OpenMode::create_or_open, DirectMode::required);
    REQUIRE(refused.error == EINVAL);
    REQUIRE_THAT(refused.text,
                 Catch::Contains("ramfs") && Catch::Contains(mounted.path().string()));
    REQUIRE_FALSE(std::filesystem::exists(path));

    const DirectFile file(path, OpenMode::create_exclusive, DirectMode::automatic);
    REQUIRE_FALSE(file.is_direct());
}

TEST_CASE("direct_file: a file without a name is a file like others, and leaves none") {
    for (const auto* const kind : {"", "tmpfs", "ramfs"}) {
        std::unique_ptr<MountedFolder> mounted;
        const TemporaryFolder here;
        if (*kind != '\0') {
            mounted = std::make_unique<MountedFolder>(kind, "");
            if (!mounted->ok())
                return skip(fmt::format("cannot mount a {}: {}", kind, mounted->refusal()));
        }
        const auto folder = mounted ? mounted->path() : here.path();
        CAPTURE(kind);
        DirectFile file(folder / "unnamed", OpenMode::create_unnamed, DirectMode::automatic);
        CHECK(std::filesystem::is_empty(folder));
        CHECK(file.path() == folder / "unnamed");
        file.preallocate(3'000'001);  // by zeros in a ramfs
        CHECK(file.size_bytes() == 3'000'001);
        const DirectFile other(folder / "unnamed", OpenMode::create_unnamed, DirectMode::automatic);
        CHECK(other.size_bytes() == 0);
    }
}

TEST_CASE("direct_file: where no file can do without a name, the name goes at once") {
    const MountedFolder mounted("mqueue", "");  // knows neither such files nor direct I/O
    if (!mounted.ok())
        return skip("cannot mount an mqueue: " + mounted.refusal());
    const auto before = std::distance(std::filesystem::directory_iterator(mounted.path()), {});
    const auto path = mounted.path() / "spillway-direct-file-test";
    const DirectFile file(path, OpenMode::create_unnamed, DirectMode::automatic);
    CHECK(file.descriptor() >= 0);
    CHECK(std::distance(std::filesystem::directory_iterator(mounted.path()), {}) == before);
}

TEST_CASE("direct_file: a file without a name wants a folder that is there") {
    const Refusal refused =
        refused_open("/nonexistent/unnamed", OpenMode::create_unnamed, DirectMode::automatic);
    CHECK(refused.error == ENOENT);
    CHECK_THAT(refused.text, Catch::Contains("cannot create /nonexistent/unnamed"));
}

TEST_CASE("direct_file: where nothing can be reserved, zeros are written") {
    const MountedFolder mounted("ramfs", "");
    if (!mounted.ok())
        return skip("cannot mount a ramfs: " + mounted.refusal());
    DirectFile file(mounted.path() / "data", OpenMode::create_or_open, DirectMode::automatic);
    REQUIRE(::pwrite(file.descriptor(), "abc", 3, 0) == 3);
    file.preallocate(3'000'001);
    REQUIRE(file.size_bytes() == 3'000'001);
    const auto bytes = testing::contents(file.path());
    REQUIRE(bytes[2] == std::byte{'c'});
    REQUIRE(std::all_of(bytes.begin() + 3, bytes.end(),
                        [](std::byte one) { return one == std::byte{0}; }));
    struct stat status = {};
    REQUIRE(::fstat(file.descriptor(), &status) == 0);
    REQUIRE(status.st_blocks * 512 >= 3'000'001);
}

TEST_CASE("direct_file: errors other than a refused O_DIRECT are reported as themselves") {
    const TemporaryFolder folder;
    REQUIRE(refused_open(folder.path() / "missing", OpenMode::open_existing).error == ENOENT);
    REQUIRE(refused_open(folder.path() / "missing/data", OpenMode::create_or_open).error == ENOENT);
    {
        const DirectFile made(folder.path() / "data", OpenMode::create_exclusive,
                              DirectMode::automatic);
    }
    const Refusal twice = refused_open(folder.path() / "data", OpenMode::create_exclusive);
    REQUIRE(twice.error == EEXIST);
    REQUIRE_THAT(twice.text, Catch::Contains((folder.path() / "data").string()));
    REQUIRE(refused_open(folder.path() / "data/below", OpenMode::create_or_open).error == ENOTDIR);
}

TEST_CASE("direct_file: too many open files is EMFILE, not a fall-back") {
    const TemporaryFolder folder;
    // A sanitizer looks at a type once, and needs a descriptor for it.
    REQUIRE(refused_open(folder.path() / "missing", OpenMode::open_existing).error == ENOENT);
    rlimit former = {};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &former) == 0);
    const int next = ::dup(0);
    REQUIRE(next >= 0);
    ::close(next);
    rlimit tight = former;
    tight.rlim_cur = static_cast<rlim_t>(next);
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &tight) == 0);
    // Looked at only afterwards: a sanitizer needs a descriptor to examine the exception.
    std::exception_ptr raised;
    try {
        const DirectFile file(folder.path() / "data", OpenMode::create_or_open,
                              DirectMode::automatic);
    } catch (...) {
        raised = std::current_exception();
    }
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &former) == 0);
    REQUIRE(raised);
    REQUIRE(refusal_of([&] { std::rethrow_exception(raised); }).error == EMFILE);
}

TEST_CASE("direct_file: a file without permission is EACCES, not a fall-back") {
    const TemporaryFolder folder;
    std::ofstream(folder.path() / "data") << "x";
    std::filesystem::permissions(folder.path(), std::filesystem::perms(0755));
    std::filesystem::permissions(folder.path() / "data", std::filesystem::perms::none);
    if (::geteuid() == 0 && ::seteuid(65534) != 0)
        return skip("root cannot become another user here");
    const Refusal refused = refused_open(folder.path() / "data", OpenMode::open_existing);
    if (::getuid() == 0)
        REQUIRE(::seteuid(0) == 0);
    REQUIRE(refused.error == EACCES);
}

TEST_CASE("direct_file: a read-only file system is EROFS, not a fall-back") {
    const MountedFolder mounted("tmpfs", "", MS_RDONLY);
    if (!mounted.ok())
        return skip("cannot mount a read-only tmpfs: " + mounted.refusal());
    REQUIRE(refused_open(mounted.path() / "data", OpenMode::create_or_open).error == EROFS);
}

TEST_CASE("direct_file: only regular files are opened") {
    const TemporaryFolder folder;
    const Refusal device = refused_open("/dev/null", OpenMode::open_existing);
    REQUIRE(device.error == EINVAL);
    REQUIRE_THAT(device.text, Catch::Contains("/dev/null") && Catch::Contains("device node"));
    const Refusal a_folder = refused_open(folder.path(), OpenMode::create_or_open);
    REQUIRE(a_folder.error == EINVAL);
    REQUIRE_THAT(a_folder.text, Catch::Contains("folder"));
    // Opening a pipe for reading would block forever.
    REQUIRE(::mkfifo((folder.path() / "pipe").c_str(), 0600) == 0);
    REQUIRE(refused_open(folder.path() / "pipe", OpenMode::open_read_only).error == EINVAL);
    std::filesystem::create_symlink("/dev/null", folder.path() / "link");
    REQUIRE(refused_open(folder.path() / "link", OpenMode::open_existing).error == EINVAL);
}

TEST_CASE("direct_file: a moved file is closed once, by its new owner") {
    const TemporaryFolder folder;
    DirectFile first(folder.path() / "first", OpenMode::create_or_open, DirectMode::buffered);
    const int descriptor = first.descriptor();
    DirectFile second(std::move(first));
    REQUIRE(second.descriptor() == descriptor);
    DirectFile third(folder.path() / "third", OpenMode::create_or_open, DirectMode::automatic);
    const int replaced = third.descriptor();
    third = std::move(second);
    REQUIRE(third.descriptor() == descriptor);
    REQUIRE(third.path().filename() == "first");
    REQUIRE_FALSE(third.is_direct());
    REQUIRE(::fcntl(replaced, F_GETFD) == -1);
}

TEST_CASE("direct_file: preallocate reserves, extends and never shortens") {
    const TemporaryFolder folder;
    DirectFile file(folder.path() / "data", OpenMode::create_or_open, DirectMode::automatic);
    REQUIRE(file.size_bytes() == 0);
    file.preallocate(1 << 20);
    REQUIRE(file.size_bytes() == 1 << 20);
    struct stat status = {};
    REQUIRE(::fstat(file.descriptor(), &status) == 0);
    REQUIRE(status.st_blocks * 512 >= 1 << 20);
    file.preallocate(4096);
    file.preallocate(0);
    REQUIRE(file.size_bytes() == 1 << 20);
    REQUIRE(refusal_of([&] { file.preallocate(~std::uint64_t{0}); }).error == EFBIG);
    file.sync_data();
    sync_folder(folder.path());
}

TEST_CASE("direct_file: a reservation that does not fit names needed and available bytes") {
    const testing::SmallDisk disk(64);
    if (!disk.ok())
        return skip("cannot make a 64 MiB loop disk: " + disk.refusal());
    DirectFile file(disk.path() / "data", OpenMode::create_or_open, DirectMode::required);
    file.preallocate(1 << 20);
    const std::uint64_t needed = 80U << 20U;
    const std::uint64_t available = available_bytes(disk.path());
    REQUIRE(available < needed);
    const Refusal refused = refusal_of([&] { file.preallocate(needed); });
    REQUIRE(refused.error == ENOSPC);
    REQUIRE_THAT(refused.text, Catch::Contains(std::to_string(needed)) &&
                                   Catch::Contains("bytes are available") &&
                                   Catch::Contains(file.path().string()));
    // What is told is what could be asked for, not what the attempt left.
    const auto told = refused.text.find(" bytes are available");
    const auto number = refused.text.rfind(' ', told - 1) + 1;
    REQUIRE(std::stoull(refused.text.substr(number, told - number)) > available / 2);
    // Nothing stays taken: the old length, and the old room for others.
    REQUIRE(file.size_bytes() == 1 << 20);
    REQUIRE(available_bytes(disk.path()) + (1 << 20) >= available);
}

TEST_CASE("direct_file: alignment is asked of the drive") {
    const testing::SmallDisk disk(64, 4096);
    if (!disk.ok())
        return skip("cannot make a loop disk with sectors of 4096 bytes: " + disk.refusal());
    const DirectFile file(disk.path() / "data", OpenMode::create_or_open, DirectMode::required);
    REQUIRE(file.alignment().offset_bytes == 4096);
}

TEST_CASE("direct_file: folders that are missing are errors") {
    REQUIRE(refusal_of([] { sync_folder("/missing-folder"); }).error == ENOENT);
    REQUIRE(refusal_of([] { static_cast<void>(available_bytes("/missing-folder")); }).error ==
            ENOENT);
    REQUIRE(refusal_of([] { sync_folder("/proc/self/comm"); }).error == ENOTDIR);
}
