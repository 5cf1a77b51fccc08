// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/units.h"

#include <array>
#include <charconv>
#include <stdexcept>
#include <system_error>

#include <fmt/format.h>

#include "cuda/byte_count.h"

namespace spillway::engine {
namespace {

struct TimeUnit {
    char name;
    double seconds;
};

constexpr std::array<TimeUnit, 4> time_units{{{'d', 86400}, {'h', 3600}, {'m', 60}, {'s', 1}}};

[[noreturn]] void refuse_duration(std::string_view text) {
    throw std::invalid_argument(
        fmt::format("\"{}\" is no time: accepted are numbers with d, h, m or s, longer units "
                    "first, as in \"24h\", \"1h30m\", \"90s\", or seconds alone",
                    text));
}

/// The number at the start of `rest`, which it is cut from.
double take_number(std::string_view text, std::string_view& rest) {
    double number = 0;
    // from_chars would also take "inf", "nan" and "-1".
    if (rest.empty() || rest.front() < '0' || rest.front() > '9')
        refuse_duration(text);
    const auto [end, error] =
        std::from_chars(rest.data(), rest.data() + rest.size(), number, std::chars_format::fixed);
    if (error != std::errc())
        refuse_duration(text);
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
    return number;
}

}  // namespace

double parse_duration_s(std::string_view text) {
    std::string_view rest = text;
    double number = take_number(text, rest);
    if (rest.empty())
        return number;
    double seconds = 0;
    for (const TimeUnit& unit : time_units) {
        if (rest.empty() || rest.front() != unit.name)
            continue;
        seconds += number * unit.seconds;
        rest.remove_prefix(1);
        if (rest.empty())
            return seconds;
        number = take_number(text, rest);
    }
    refuse_duration(text);
}

std::uint64_t parse_size_bytes(std::string_view text) {
    const auto bytes = cuda::parse_byte_count(text);
    if (!bytes)
        throw std::invalid_argument(
            fmt::format("\"{}\" is no size: accepted are {}", text, cuda::byte_count_forms));
    return *bytes;
}

}  // namespace spillway::engine
