// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace spillway::cuda {

/// What parse_byte_count() reads, for error messages.
inline constexpr std::string_view byte_count_forms =
    "a number with B, KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024), or "
    "plain "
    "bytes";

/// "4096", "256MiB", "1.5GiB", "64MB" in bytes, rounded to the nearest. Nothing for any other text,
/// for a fraction of a byte written without a unit and for 2^64 or more.
[[nodiscard]] std::optional<std::uint64_t> parse_byte_count(std::string_view text);

/// The shortest of these forms that says exactly `bytes`, with a unit if it costs no more:
/// "256MiB", "8GB", "4097".
[[nodiscard]] std::string format_byte_count(std::uint64_t bytes);

}  // namespace spillway::cuda
