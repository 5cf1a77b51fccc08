// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <stdexcept>
#include <string_view>
#include <system_error>

#include <fmt/format.h>
#include <sys/random.h>

#include "offload/commit_table.h"

namespace spillway::offload {
namespace {

constexpr std::size_t text_length = 36;

constexpr bool is_dash(std::size_t position) {
    return position == 8 || position == 13 || position == 18 || position == 23;
}

/// -1 for anything but a lower-case digit: one run has one spelling, also as a folder's name.
constexpr int hex_value(char digit) {
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    if (digit >= 'a' && digit <= 'f')
        return digit - 'a' + 10;
    return -1;
}

[[noreturn]] void refuse(std::string_view text) {
    throw std::invalid_argument(
        fmt::format("'{}' is no run identifier; needed is a lower-case UUID such as "
                    "'0f8fad5b-d9cb-469f-a165-70867728950e'",
                    text));
}

}  // namespace

RunId RunId::random() {
    RunId run;
    std::size_t filled = 0;
    while (filled < run.bytes.size()) {
        const auto got = ::getrandom(run.bytes.data() + filled, run.bytes.size() - filled, 0);
        if (got < 0 && errno != EINTR)
            throw std::system_error(errno, std::generic_category(),
                                    "getrandom for a run identifier");
        filled += static_cast<std::size_t>(std::max<decltype(got)>(got, 0));
    }
    run.bytes[6] = static_cast<std::uint8_t>((run.bytes[6] & 0x0fU) | 0x40U);  // version 4
    run.bytes[8] =
        static_cast<std::uint8_t>((run.bytes[8] & 0x3fU) | 0x80U);  // variant of RFC 4122
    return run;
}

std::string RunId::text() const {
    std::string text;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        if (is_dash(text.size()))
            text += '-';
        text += fmt::format("{:02x}", bytes[i]);
    }
    return text;
}

RunId RunId::parse(std::string_view text) {
    if (text.size() != text_length)
        refuse(text);
    RunId run;
    std::size_t digits = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (is_dash(i)) {
            if (text[i] != '-')
                refuse(text);
            continue;
        }
        const int value = hex_value(text[i]);
        if (value < 0)
            refuse(text);
        auto& byte = run.bytes[digits++ / 2];
        byte = static_cast<std::uint8_t>(byte * 16 + value);
    }
    return run;
}

}  // namespace spillway::offload
