// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/average_rule.h"

#include <charconv>
#include <stdexcept>
#include <string_view>
#include <variant>

#include <fmt/format.h>

namespace spillway::offload {
namespace {

template <typename Number>
Number number_behind(const std::string& text, std::string_view prefix) {
    Number value{};
    const auto* const begin = text.data() + prefix.size();
    const auto* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(begin, end, value);
    if (begin == end || error != std::errc{} || stop != end)
        throw std::invalid_argument(
            fmt::format("\"{}\" has no number that can be taken behind {}", text, prefix));
    return value;
}

AverageRule ema(double decay, const std::string& text) {
    if (!(decay > 0 && decay < 1))
        throw std::invalid_argument(
            fmt::format("\"{}\": the decay must lie between 0 and 1, such as ema:0.999", text));
    return {.parameters = cpu_optim::EmaParameters{.decay = decay}};
}

AverageRule swa(std::uint64_t every, const std::string& text) {
    if (every == 0)
        throw std::invalid_argument(
            fmt::format("\"{}\": weights are taken up every so many updates, at least 1", text));
    return {.parameters = cpu_optim::SwaParameters{}, .every = every};
}

}  // namespace

AverageBasis basis_of(const AverageRule& rule) noexcept {
    const bool is_ema = std::holds_alternative<cpu_optim::EmaParameters>(rule.parameters);
    return {.kind = is_ema ? AverageKind::ema : AverageKind::swa, .every = rule.every};
}

std::string_view average_kind_name(AverageKind kind) noexcept {
    return kind == AverageKind::ema ? "ema" : "swa";
}

std::optional<AverageRule> parse_average(const std::string& text) {
    constexpr std::string_view ema_prefix = "ema:";
    constexpr std::string_view swa_prefix = "swa:";
    if (text == "off")
        return std::nullopt;
    if (text.starts_with(ema_prefix))
        return ema(number_behind<double>(text, ema_prefix), text);
    if (text.starts_with(swa_prefix))
        return swa(number_behind<std::uint64_t>(text, swa_prefix), text);
    throw std::invalid_argument(
        fmt::format("\"{}\" is neither off nor ema:DECAY nor swa:EVERY", text));
}

}  // namespace spillway::offload
