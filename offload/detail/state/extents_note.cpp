// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/state/extents_note.h"

#include <charconv>
#include <stdexcept>

#include <fmt/format.h>

namespace spillway::offload::detail {
namespace {

constexpr std::string_view first_line = "spillway-extents 1\n";

/// Takes "key VALUE\n" of a known width off the front of `rest`.
std::optional<std::string_view> take(std::string_view& rest, std::string_view key,
                                     std::size_t width) {
    if (rest.size() < key.size() + width + 1 || !rest.starts_with(key) ||
        rest[key.size() + width] != '\n')
        return std::nullopt;
    const auto value = rest.substr(key.size(), width);
    rest.remove_prefix(key.size() + width + 1);
    return value;
}

template <typename Number>
std::optional<Number> number_in(std::string_view digits) {
    Number value{};
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc{} || end != digits.data() + digits.size())
        return std::nullopt;
    return value;
}

}  // namespace

std::string ExtentsNote::text() const {
    return fmt::format("{}run {}\nsequence {:020}\npid {:010}\nout {}\n", first_line, run.text(),
                       sequence, pid, out.string());
}

std::optional<ExtentsNote> ExtentsNote::parse(std::string_view text) {
    if (!text.starts_with(first_line))
        return std::nullopt;
    text.remove_prefix(first_line.size());
    const auto run_text = take(text, "run ", 36);
    const auto sequence_text = run_text ? take(text, "sequence ", 20) : std::nullopt;
    const auto pid_text = sequence_text ? take(text, "pid ", 10) : std::nullopt;
    if (!pid_text)
        return std::nullopt;
    const auto sequence = number_in<std::uint64_t>(*sequence_text);
    const auto pid = number_in<std::int64_t>(*pid_text);
    constexpr std::string_view out_key = "out /";
    if (!sequence || !pid || !text.starts_with(out_key) || text.back() != '\n')
        return std::nullopt;
    text.remove_prefix(out_key.size() - 1);
    text.remove_suffix(1);
    try {
        return ExtentsNote{RunId::parse(*run_text), *sequence, *pid, std::filesystem::path(text)};
    } catch (const std::invalid_argument&) {
        return std::nullopt;
    }
}

}  // namespace spillway::offload::detail
