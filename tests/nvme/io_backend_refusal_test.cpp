// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
//
// Containers, limits and forks: where io_uring is forbidden or a queue belongs to another process.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include <catch2/catch.hpp>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nvme/huge_page_arena.h"
#include "nvme/io_backend.h"
#include "nvme/io_queue.h"
#include "tests/nvme/patterns.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"

using namespace spillway::nvme;
using spillway::testing::skip;
using spillway::testing::TemporaryFolder;
using testing::fill_pattern;
using testing::has_pattern;

namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

/// Runs `body` in a forked child and gives back its exit status; 255 when it did not exit.
int in_child(const std::function<int()>& body) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        ::alarm(20);
        ::_exit(body());
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

/// From now on system call `number` fails with `error` in this process, as under a container's
/// profile.
bool forbid(unsigned number, int error) {
    std::array filter = {
        sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
        sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program = {static_cast<unsigned short>(filter.size()), filter.data()};
    return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/// 0 when `bytes` written and read back through the queue are equal.
int round_trip(IoQueue& queue, const std::filesystem::path& path, std::size_t bytes) {
    DirectFile file(path, OpenMode::create_or_open, DirectMode::automatic);
    const HugePageArena arena(bytes);
    fill_pattern(arena.bytes().first(bytes), 11);
    if (!queue.submit(IoRequest::make_write(file, 0, arena.bytes().first(bytes))).wait().ok())
        return 11;
    if (!queue.submit(IoRequest::make_flush(file)).wait().ok())
        return 12;
    std::fill(arena.bytes().begin(), arena.bytes().end(), std::byte{0});
    if (!queue.submit(IoRequest::make_read(file, 0, arena.bytes().first(bytes))).wait().ok())
        return 13;
    return has_pattern(arena.bytes().first(bytes), 11) ? 0 : 14;
}

}  // namespace

TEST_CASE("io_backend: a forked child is refused and its parent unaffected") {
    const auto kind = GENERATE(BackendKind::io_uring, BackendKind::libaio, BackendKind::threads);
    if (kind == BackendKind::io_uring && !io_uring_refusal().empty())
        return skip("io_uring: " + io_uring_refusal());
    if (kind == BackendKind::libaio && !libaio_refusal().empty())
        return skip("libaio: " + libaio_refusal());
    const TemporaryFolder folder;
    DirectFile file(folder.path() / "data", OpenMode::create_or_open, DirectMode::automatic);
    const HugePageArena arena(mebibyte);
    auto queue = std::make_unique<IoQueue>(make_backend(kind, 8), IoQueue::Options{});
    queue->submit(IoRequest::make_write(file, 0, arena.bytes())).wait().throw_if_error();
    const int status = in_child([&] {
        const IoResult result = queue->submit(IoRequest::make_flush(file)).wait();
        if (result.error != std::errc::operation_not_permitted ||
            result.context.find("forked") == std::string::npos)
            return 1;
        queue.reset();  // must not hang on the parent's thread
        return 0;
    });
    REQUIRE(status == 0);
    REQUIRE(round_trip(*queue, folder.path() / "other", mebibyte) == 0);
}

TEST_CASE("io_backend: where io_uring is forbidden, others take over and the text says why") {
    const auto [error, name] =
        GENERATE(table<int, const char*>({{EPERM, "EPERM"}, {ENOSYS, "ENOSYS"}}));
    const bool libaio_too = GENERATE(false, true);
    const TemporaryFolder folder;
    const int error_number = error;
    const std::string error_text = name;
    const std::string expected = libaio_too || !libaio_refusal().empty() ? "threads" : "libaio";
    const int status = in_child([&] {
        if (!forbid(__NR_io_uring_setup, error_number))
            return 77;
        if (libaio_too && !forbid(__NR_io_setup, error_number))
            return 77;
        if (io_uring_refusal().rfind(error_text + ": ", 0) != 0)
            return 1;
        if (libaio_too && libaio_refusal().empty())
            return 5;
        auto backend = make_backend(BackendKind::automatic, 8);
        if (backend->name() != expected)
            return 2;
        try {
            static_cast<void>(make_backend(BackendKind::io_uring, 8));
            return 3;
        } catch (const std::system_error& refused) {
            const std::string text = refused.what();
            if (refused.code().value() != error_number ||
                text.find(error_text) == std::string::npos ||
                text.find("seccomp") == std::string::npos ||
                text.find("threads") == std::string::npos)
                return 4;
        }
        IoQueue queue(std::move(backend), {});
        return round_trip(queue, folder.path() / "data", 3 * mebibyte);
    });
    if (status == 77)
        return skip("seccomp filters cannot be installed here");
    REQUIRE(status == 0);
}

TEST_CASE("io_backend: a system that has io_uring switched off is told by the switch") {
    // Another file in the switch's place, for one child alone: the real one is the whole machine's.
    const TemporaryFolder folder;
    const auto shown = folder.path() / "io_uring_disabled";
    const char* const value = GENERATE("1", "2", "0");
    std::ofstream(shown) << value << '\n';
    const std::string expected =
        *value == '0' ? "" : std::string("kernel.io_uring_disabled is ") + value;
    const int status = in_child([&] {
        if (::unshare(CLONE_NEWNS) != 0 ||
            ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
            ::mount(shown.c_str(), "/proc/sys/kernel/io_uring_disabled", nullptr, MS_BIND,
                    nullptr) != 0 ||
            !forbid(__NR_io_uring_setup, EPERM))
            return 77;
        const std::string refusal = io_uring_refusal();
        if (refusal.rfind("EPERM: ", 0) != 0)
            return 1;
        if (expected.empty())
            return refusal.find("io_uring_disabled") == std::string::npos ? 0 : 2;
        if (refusal.find(expected) == std::string::npos ||
            automatic_choice().find(expected) == std::string::npos)
            return 3;
        try {
            static_cast<void>(make_backend(BackendKind::io_uring, 8));
            return 4;
        } catch (const std::system_error& refused) {
            return std::string(refused.what()).find(expected) != std::string::npos ? 0 : 5;
        }
    });
    if (status == 77)
        return skip("namespaces, the switch or seccomp filters are not to be had here");
    REQUIRE(status == 0);
}

TEST_CASE("io_backend: 64 KiB of lockable memory are enough") {
    const TemporaryFolder folder;
    const int status = in_child([&] {
        const rlimit tight = {65536, 65536};
        if (::setrlimit(RLIMIT_MEMLOCK, &tight) != 0)
            return 77;
        // Root is exempt from the limit; an ordinary user is not.
        if (::geteuid() == 0) {
            std::filesystem::permissions(folder.path(), std::filesystem::perms::all);
            if (::setuid(65534) != 0)
                return 77;
        }
        auto backend = make_backend(BackendKind::automatic, 32);
        IoQueue queue(std::move(backend), {});
        return round_trip(queue, folder.path() / "data", 8 * mebibyte);
    });
    if (status == 77)
        return skip("the limit or the user cannot be changed here");
    REQUIRE(status == 0);
}

TEST_CASE("io_backend: automatic takes the first that works; a depth of 0 is refused") {
    const std::string first = io_uring_refusal().empty() ? "io_uring"
                              : libaio_refusal().empty() ? "libaio"
                                                         : "threads";
    REQUIRE(make_backend(BackendKind::automatic, 4)->name() == first);
    const auto kind = GENERATE(BackendKind::automatic, BackendKind::libaio);
    REQUIRE_THROWS_AS(make_backend(kind, 0), std::invalid_argument);
}
