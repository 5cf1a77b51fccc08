// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/cli/nearest.h"
#include "engine/cli/units.h"
#include "engine/settings/setting_fields.h"

/// The kinds of field that the table of setting_fields() is made of.
namespace spillway::engine::fields {

/// Throws std::invalid_argument on anything but one finite number that the type holds.
template <typename Number>
[[nodiscard]] Number parse_number(const std::string& text) {
    Number value = 0;
    const auto* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc::result_out_of_range && stop == end && std::is_integral_v<Number>)
        throw std::invalid_argument(fmt::format("\"{}\" is too large; the most is {}", text,
                                                std::numeric_limits<Number>::max()));
    if (text.empty() || error != std::errc{} || stop != end)
        throw std::invalid_argument(std::is_integral_v<Number>
                                        ? fmt::format("\"{}\" is no whole number from 0 to {}",
                                                      text, std::numeric_limits<Number>::max())
                                        : fmt::format("\"{}\" is no number", text));
    if constexpr (std::is_floating_point_v<Number>) {
        if (!std::isfinite(value))
            throw std::invalid_argument(fmt::format("\"{}\" is not finite", text));
    }
    return value;
}

/// What all kinds of field begin with.
struct Label {
    std::string name;
    std::string value_name;
    std::string help;
    SettingScope scope = SettingScope::placement;
    std::string default_words{};
};

inline SettingField make(Label label, JsonKind kind,
                         std::function<std::string(const TrainSettings&)> read,
                         std::function<void(TrainSettings&, const std::string&)> write) {
    return {std::move(label.name), std::move(label.value_name),
            std::move(label.help), std::move(label.default_words),
            label.scope,           kind,
            std::move(read),       std::move(write)};
}

inline SettingField text(Label label, std::string TrainSettings::*member,
                         std::function<void(const std::string&)> check = {}) {
    return make(
        std::move(label), JsonKind::text, [member](const TrainSettings& s) { return s.*member; },
        [member, check = std::move(check)](TrainSettings& s, const std::string& value) {
            if (check && !value.empty())
                check(value);
            s.*member = value;
        });
}

/// A name that is known but still to come, and why if that is worth a word.
struct Later {
    std::string name;
    std::string because{};
};

inline SettingField choice(Label label, std::string TrainSettings::*member,
                           std::vector<std::string> choices, std::vector<Later> later = {}) {
    label.value_name = fmt::format("{}", fmt::join(choices, "|"));
    return text(std::move(label), member, [choices, later](const std::string& value) {
        if (std::find(choices.begin(), choices.end(), value) != choices.end())
            return;
        const auto known = std::ranges::find(later, value, &Later::name);
        if (known != later.end())
            throw std::invalid_argument(
                fmt::format("{} is not available in this version{}; it takes {}", value,
                            known->because, fmt::join(choices, ", ")));
        throw std::invalid_argument(fmt::format("\"{}\" is not one of {}{}", value,
                                                fmt::join(choices, ", "),
                                                suggestion(value, choices, "")));
    });
}

template <typename Number>
SettingField number(Label label, Number TrainSettings::*member) {
    return make(
        std::move(label), JsonKind::number,
        [member](const TrainSettings& s) { return fmt::format("{}", s.*member); },
        [member](TrainSettings& s, const std::string& value) {
            s.*member = parse_number<Number>(value);
        });
}

inline SettingField bytes(Label label, std::uint64_t TrainSettings::*member) {
    return make(
        std::move(label), JsonKind::number,
        [member](const TrainSettings& s) { return fmt::format("{}", s.*member); },
        [member](TrainSettings& s, const std::string& value) {
            s.*member = parse_size_bytes(value);
        });
}

inline SettingField path(Label label, std::filesystem::path TrainSettings::*member) {
    return make(
        std::move(label), JsonKind::text,
        [member](const TrainSettings& s) { return (s.*member).string(); },
        [member](TrainSettings& s, const std::string& value) { s.*member = value; });
}

/// Fields of TrainSettings::tuning; 0 stands for what is chosen.
inline SettingField tuned(Label label, std::uint64_t Tuning::*member,
                          std::function<std::uint64_t(const std::string&)> parse) {
    return make(
        std::move(label), JsonKind::number,
        [member](const TrainSettings& s) { return fmt::format("{}", s.tuning.*member); },
        [member, parse = std::move(parse)](TrainSettings& s, const std::string& value) {
            s.tuning.*member = parse(value);
        });
}

inline SettingField tuned_number(Label label, std::uint64_t Tuning::*member) {
    return tuned(std::move(label), member, parse_number<std::uint64_t>);
}

inline SettingField tuned_bytes(Label label, std::uint64_t Tuning::*member) {
    return tuned(std::move(label), member,
                 [](const std::string& value) { return parse_size_bytes(value); });
}

}  // namespace spillway::engine::fields
