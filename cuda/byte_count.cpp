// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/byte_count.h"

#include <array>
#include <charconv>
#include <cmath>
#include <system_error>

#include <fmt/format.h>

namespace spillway::cuda {
namespace {

struct Unit {
    std::string_view name;
    std::uint64_t bytes;
};

constexpr std::array<Unit, 9> units{{{"TiB", 1ULL << 40},
                                     {"TB", 1'000'000'000'000ULL},
                                     {"GiB", 1ULL << 30},
                                     {"GB", 1'000'000'000ULL},
                                     {"MiB", 1ULL << 20},
                                     {"MB", 1'000'000ULL},
                                     {"KiB", 1ULL << 10},
                                     {"KB", 1'000ULL},
                                     {"B", 1ULL}}};

std::optional<std::uint64_t> unit_bytes(std::string_view name) {
    if (name.empty())
        return 1;
    for (const Unit& unit : units)
        if (unit.name == name)
            return unit.bytes;
    return std::nullopt;
}

}  // namespace

std::optional<std::uint64_t> parse_byte_count(std::string_view text) {
    // from_chars would also take "inf", "nan" and "-1".
    if (text.empty() || text.front() < '0' || text.front() > '9')
        return std::nullopt;
    // The 64 bits of a long double's mantissa hold every plain count exactly.
    long double number = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
    if (error != std::errc())
        return std::nullopt;
    const auto unit = unit_bytes({rest, static_cast<std::size_t>(end - rest)});
    if (!unit || (*unit == 1 && number != std::floor(number)))
        return std::nullopt;
    const long double bytes = std::round(number * static_cast<long double>(*unit));
    if (!(bytes < 0x1p64L))
        return std::nullopt;
    return static_cast<std::uint64_t>(bytes);
}

std::string format_byte_count(std::uint64_t bytes) {
    std::string shortest = fmt::format("{}", bytes);
    for (const Unit& unit : units) {
        if (bytes == 0 || bytes % unit.bytes != 0)
            continue;
        std::string text = fmt::format("{}{}", bytes / unit.bytes, unit.name);
        if (text.size() <= shortest.size())
            shortest = std::move(text);
    }
    return shortest;
}

}  // namespace spillway::cuda
