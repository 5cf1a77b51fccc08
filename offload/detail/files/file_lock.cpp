// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/files/file_lock.h"

#include <cerrno>
#include <system_error>

#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

namespace spillway::offload::detail {

bool try_flock(int descriptor, int operation, const std::filesystem::path& path) {
    while (::flock(descriptor, operation | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK)
            return false;
        if (errno != EINTR)
            throw std::system_error(
                errno, std::generic_category(),
                fmt::format("cannot lock {} (its file system must support flock)", path.string()));
    }
    return true;
}

bool is_open_file(int descriptor, const std::filesystem::path& path) noexcept {
    struct stat opened = {};
    struct stat named = {};
    return ::fstat(descriptor, &opened) == 0 && ::lstat(path.c_str(), &named) == 0 &&
           opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

}  // namespace spillway::offload::detail
