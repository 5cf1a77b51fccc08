// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <sys/types.h>

#include "offload/detail/files/durable_files.h"
#include "offload/state_folder.h"

namespace spillway::offload::detail {

/// A folder, held by flock on the file `lock` inside it for the object's life. flock belongs to the
/// open file, so a second object in the same process is refused like another process is, and a kill
/// releases it. A forked child does not release its parent's lock. Move-only.
class FolderLock {
  public:
    static constexpr const char* file_name = "lock";

    /// Waits for nobody. FolderRefused naming folder and holder's pid if it is in use. `exclusive`
    /// creates the file if it is missing; `shared_read` needs no write access.
    FolderLock(const std::filesystem::path& folder, LockMode mode);
    ~FolderLock();
    FolderLock(FolderLock&&) noexcept = default;
    FolderLock& operator=(FolderLock&&) = delete;
    FolderLock(const FolderLock&) = delete;

    /// An exclusive lock without need of write access, for clearing up; nothing if somebody holds
    /// the folder. Throws std::system_error if the file is missing or unreadable.
    [[nodiscard]] static std::optional<FolderLock> probe(const std::filesystem::path& folder);

    /// The file's content: at most limit_bytes, with a line "pid N" somewhere.
    [[nodiscard]] std::string read() const;
    /// Overwrites it in place and flushes it.
    void write(std::string_view text);

    static constexpr std::size_t limit_bytes = 16384;

  private:
    FolderLock(std::filesystem::path file, Descriptor descriptor) noexcept;
    [[noreturn]] void refuse(const std::filesystem::path& folder) const;

    std::filesystem::path path_;
    Descriptor descriptor_;
    pid_t owner_ = -1;
};

}  // namespace spillway::offload::detail
