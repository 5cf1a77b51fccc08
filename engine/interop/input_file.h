// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <string>
#include <string_view>

namespace spillway::engine {

/// The longest file of settings or measurements that is read.
inline constexpr std::uintmax_t most_input_bytes = std::uintmax_t{16} << 20;

/// The text of a regular file. A folder, a pipe, a device or a longer file is not opened. Throws
/// std::runtime_error that says what is wrong ("is a folder"), without the path.
[[nodiscard]] std::string read_regular_file(const std::filesystem::path& path,
                                            std::uintmax_t most_bytes = most_input_bytes);

/// What the JSON library has to say, without its own names: "line 1, column 2: syntax error ...".
[[nodiscard]] std::string json_reason(const std::exception& error);

/// "is a folder", "is a pipe", ...: what a path that is no regular file is.
[[nodiscard]] std::string_view kind_of_file(std::filesystem::file_type type) noexcept;

}  // namespace spillway::engine
