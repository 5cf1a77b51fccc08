// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/device_spec.h"

#include <charconv>
#include <stdexcept>
#include <system_error>

#include <fmt/format.h>

#include "cuda/byte_count.h"
#include "cuda/host_mapping.h"

namespace spillway::cuda {
namespace {

constexpr std::string_view cuda_prefix = "cuda:";
constexpr std::string_view sim_prefix = "sim:";
constexpr std::string_view rate_suffix = "/s";

[[noreturn]] void refuse(std::string_view spec, std::string_view what) {
    throw std::invalid_argument(
        fmt::format("device '{}': {}; accepted are 'cpu', 'cuda:N' and 'sim:BYTES[@RATE]', as in "
                    "'sim:256MiB@8GB/s'",
                    spec, what));
}

std::size_t parse_capacity(std::string_view spec, std::string_view text) {
    const auto bytes = parse_byte_count(text);
    if (!bytes)
        refuse(spec, fmt::format("the size '{}' is not {}", text, byte_count_forms));
    if (*bytes < page_bytes)
        refuse(spec,
               fmt::format("the size '{}' is {} bytes, but a device needs one page of {} bytes",
                           text, *bytes, page_bytes));
    return *bytes;
}

double parse_rate(std::string_view spec, std::string_view text) {
    if (!text.ends_with(rate_suffix))
        refuse(spec, fmt::format("the rate '{}' does not end in '/s'", text));
    const auto number = text.substr(0, text.size() - rate_suffix.size());
    const auto bytes = parse_byte_count(number);
    if (!bytes)
        refuse(spec,
               fmt::format("the rate '{}' is not {}, each with '/s'", text, byte_count_forms));
    if (*bytes == 0)
        refuse(spec,
               fmt::format("the rate '{}' is zero; leave '@RATE' away for a link without limit",
                           text));
    return static_cast<double>(*bytes);
}

int parse_ordinal(std::string_view spec) {
    if (spec.size() <= cuda_prefix.size())
        refuse(spec, "a 'cuda' device needs a number, as in 'cuda:0'");
    const auto text = spec.substr(cuda_prefix.size());
    int ordinal = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ordinal);
    if (error != std::errc() || end != text.data() + text.size() || ordinal < 0)
        refuse(spec, fmt::format("the number '{}' is not one of 0, 1, 2 ...", text));
    return ordinal;
}

}  // namespace

DeviceSpec parse_device_spec(std::string_view spec) {
    if (spec == "cpu")
        return {};
    if (spec == "cuda" || spec.starts_with(cuda_prefix))
        return {.kind = DeviceSpec::Kind::cuda, .ordinal = parse_ordinal(spec)};
    if (spec == "sim")
        refuse(spec, "a 'sim' device needs a size");
    if (!spec.starts_with(sim_prefix))
        refuse(spec, spec.empty() ? "the name is empty" : "no device has this name");

    const auto rest = spec.substr(sim_prefix.size());
    const auto at = rest.find('@');
    DeviceSpec parsed{.kind = DeviceSpec::Kind::sim,
                      .capacity_bytes = parse_capacity(spec, rest.substr(0, at))};
    if (at != std::string_view::npos)
        parsed.link_bytes_per_s = parse_rate(spec, rest.substr(at + 1));
    return parsed;
}

}  // namespace spillway::cuda
