// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

#include <stdlib.h>
#include <unistd.h>

namespace spillway::testing {

/// Where folders are made without a disk, if there is such a place: for tests that flush thousands
/// of times, and whose flushes are watched and not needed.
[[nodiscard]] inline std::filesystem::path quick_place() {
    const std::filesystem::path memory = "/dev/shm";
    return ::access(memory.c_str(), W_OK | X_OK) == 0 ? memory : std::filesystem::current_path();
}

/// A fresh folder on the file system of the build tree (a real disk, unlike a tmpfs /tmp) or in
/// `place`, removed at the end.
class TemporaryFolder {
  public:
    explicit TemporaryFolder(const std::filesystem::path& place = std::filesystem::current_path()) {
        std::string pattern = (place / "tmp.XXXXXX").string();
        if (::mkdtemp(pattern.data()) == nullptr)
            throw std::system_error(errno, std::generic_category(), "mkdtemp " + pattern);
        path_ = pattern;
    }
    ~TemporaryFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;

    [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

  private:
    std::filesystem::path path_;
};

}  // namespace spillway::testing
