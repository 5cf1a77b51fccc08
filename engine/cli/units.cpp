// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/units.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <stdexcept>
#include <string>
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

double checked_duration(std::string_view text, double seconds) {
    constexpr double most_s = 100 * 366 * 86400.0;
    if (!(seconds <= most_s))
        throw std::invalid_argument(
            fmt::format("\"{}\" is too long a time: the most is 100 years (36600d)", text));
    return seconds;
}

/// The number at the start of `rest`, which it is cut from.
double take_number(std::string_view text, std::string_view& rest) {
    double number = 0;
    // from_chars would also take "inf", "nan" and "-1".
    if (rest.empty() || rest.front() < '0' || rest.front() > '9')
        refuse_duration(text);
    const auto [end, error] =
        std::from_chars(rest.data(), rest.data() + rest.size(), number, std::chars_format::fixed);
    if (error == std::errc::result_out_of_range)
        static_cast<void>(checked_duration(text, std::numeric_limits<double>::infinity()));
    if (error != std::errc())
        refuse_duration(text);
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
    return number;
}

/// Well-formed but for its value.
bool is_too_large_a_size(std::string_view text) {
    const auto unit = text.find_first_not_of("0123456789");
    const auto digits = text.substr(0, unit);
    const auto name = unit == std::string_view::npos ? std::string_view() : text.substr(unit);
    return !digits.empty() && cuda::parse_byte_count("1" + std::string(name)).has_value() &&
           !cuda::parse_byte_count(text).has_value();
}

}  // namespace

double parse_duration_s(std::string_view text) {
    std::string_view rest = text;
    double number = take_number(text, rest);
    if (rest.empty())
        return checked_duration(text, number);
    double seconds = 0;
    for (const TimeUnit& unit : time_units) {
        if (rest.empty() || rest.front() != unit.name)
            continue;
        seconds += number * unit.seconds;
        rest.remove_prefix(1);
        if (rest.empty())
            return checked_duration(text, seconds);
        number = take_number(text, rest);
    }
    refuse_duration(text);
}

std::uint64_t parse_size_bytes(std::string_view text) {
    const auto bytes = cuda::parse_byte_count(text);
    if (!bytes && is_too_large_a_size(text))
        throw std::invalid_argument(
            fmt::format("\"{}\" is too large a size: it must be below 2^64 bytes", text));
    if (!bytes)
        throw std::invalid_argument(
            fmt::format("\"{}\" is no size: accepted are {}", text, cuda::byte_count_forms));
    return *bytes;
}

std::vector<std::string> parse_list(const std::string& text) {
    std::vector<std::string> items;
    for (std::size_t begin = 0; begin <= text.size();) {
        const auto end = std::min(text.find(',', begin), text.size());
        if (end == begin)
            throw std::invalid_argument(fmt::format("\"{}\" has an empty item", text));
        items.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return items;
}

}  // namespace spillway::engine
