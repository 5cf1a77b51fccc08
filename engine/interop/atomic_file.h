// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "nvme/direct_file.h"

namespace spillway::engine {

/// Where a file is put together before it gets its name: PATH.spillway-partial.
[[nodiscard]] std::filesystem::path partial_path_of(const std::filesystem::path& path);

/// Gives the finished, flushed partial file its name and makes the name durable (rename, fsync of
/// the folder). Throws std::system_error naming the path.
void publish_partial(const std::filesystem::path& path);

/// Writes all of `bytes` to a buffered file. Throws std::system_error naming path, offset and
/// length.
void write_fully(const nvme::DirectFile& file, std::uint64_t offset_bytes,
                 std::span<const std::byte> bytes);

/// Replaces the file `path` by one that holds `text`: whoever looks sees the old one or the new
/// one, whole, also after a power cut. Throws std::system_error naming the path.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

}  // namespace spillway::engine
