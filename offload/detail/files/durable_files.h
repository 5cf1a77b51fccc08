// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

/// Small files that must be there, whole, after a power cut. Every error is a std::system_error
/// whose text names the path.
namespace spillway::offload::detail {

/// An open file descriptor. Move-only; closes it.
class Descriptor {
  public:
    Descriptor() noexcept = default;
    /// As open(2), with O_CLOEXEC and never through a symbolic link.
    Descriptor(const std::filesystem::path& path, int flags);
    ~Descriptor();
    Descriptor(Descriptor&& other) noexcept;
    Descriptor& operator=(Descriptor&& other) noexcept;
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    [[nodiscard]] int get() const noexcept { return descriptor_; }

  private:
    int descriptor_ = -1;
};

/// What the file holds; a file of more than `limit_bytes` is a std::runtime_error.
[[nodiscard]] std::string read_text(const std::filesystem::path& path, std::size_t limit_bytes);
[[nodiscard]] std::string read_text(int descriptor, const std::filesystem::path& path,
                                    std::size_t limit_bytes);

/// Makes `text` the file's whole content and flushes it.
void write_text(int descriptor, const std::filesystem::path& path, std::string_view text);

/// Writes a file, new or overwritten, and flushes it; the folder is not flushed.
void write_file(const std::filesystem::path& path, std::string_view text);

/// Renames within one folder and flushes the folder. `from` must have been flushed.
void publish_file(const std::filesystem::path& from, const std::filesystem::path& to);

/// Creates the folder and the missing ones above it, each flushed into its parent.
void make_folders(const std::filesystem::path& folder);

}  // namespace spillway::offload::detail
