// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace spillway::engine {

/// A regular file opened for reading at any place. Move-only. Thread-safe.
class DataFile {
  public:
    /// Throws std::invalid_argument that names the file and says why it cannot serve: missing, not
    /// readable, a folder, no regular file, empty.
    explicit DataFile(std::filesystem::path path);
    ~DataFile();
    DataFile(DataFile&& other) noexcept;
    DataFile& operator=(DataFile&&) = delete;
    DataFile(const DataFile&) = delete;
    DataFile& operator=(const DataFile&) = delete;

    [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
    [[nodiscard]] std::uint64_t size_bytes() const noexcept { return size_bytes_; }

    /// Fills `out` with the bytes from `offset_bytes` on, all of them. Throws std::system_error on
    /// a failed read and std::runtime_error where the file has become shorter than it was.
    void read(std::uint64_t offset_bytes, std::span<std::byte> out) const;

  private:
    std::filesystem::path path_;
    int descriptor_ = -1;
    std::uint64_t size_bytes_ = 0;
};

}  // namespace spillway::engine
