// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace spillway::engine {

/// "24h", "90s", "15m", "1h30m", "1.5h", "2d" in seconds: numbers with d, h, m, s, each unit at
/// most once and the longer ones first. A number alone is seconds. A century is the most. Throws
/// std::invalid_argument that names the text and what is accepted.
[[nodiscard]] double parse_duration_s(std::string_view text);

/// "8GiB", "64MB", "1.5GiB", "4096" in bytes. Throws std::invalid_argument that names the text and
/// what is accepted.
[[nodiscard]] std::uint64_t parse_size_bytes(std::string_view text);

/// The items between commas. Throws std::invalid_argument if one is empty.
[[nodiscard]] std::vector<std::string> parse_list(const std::string& text);

}  // namespace spillway::engine
