// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/model/gpt2_config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <stdexcept>

#include <fmt/format.h>

namespace spillway::engine {
namespace {

constexpr std::string_view family = "gpt2:";

/// Takes a number off the front of `rest`; it must be followed by `separator`, or by the end if
/// that is 0.
std::uint32_t take_number(std::string_view text, std::string_view& rest, char separator) {
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
    if (error == std::errc::result_out_of_range)
        throw std::invalid_argument(fmt::format(
            "model \"{}\": the number at \"{}\" is too large (gpt2:LAYERSxHIDDENxHEADS)", text,
            rest));
    const auto taken = static_cast<std::size_t>(end - rest.data());
    const bool ended =
        separator == '\0' ? taken == rest.size() : taken < rest.size() && rest[taken] == separator;
    if (error != std::errc{} || !ended)
        throw std::invalid_argument(
            fmt::format("model \"{}\" is not of the form gpt2:LAYERSxHIDDENxHEADS, for example "
                        "gpt2:12x768x12: a whole number was expected at \"{}\"",
                        text, rest));
    rest.remove_prefix(taken + (separator == '\0' ? 0 : 1));
    return value;
}

void require(bool holds, const std::string& message) {
    if (!holds)
        throw std::invalid_argument("a GPT-2 cannot be built: " + message);
}

void require_range(const char* what, std::uint32_t value, std::uint32_t most) {
    require(value > 0 && value <= most,
            fmt::format("{} is {}; it must be 1 to {}", what, value, most));
}

/// So that no count of elements or bytes comes near 64 bits.
void require_countable(const Gpt2Config& config) {
    constexpr double most = 0x1p48;
    const double hidden = config.hidden;
    const double parameters =
        hidden * (static_cast<double>(config.vocabulary) + config.context) +
        config.layers * (4 * hidden * hidden + 2 * hidden * config.feed_forward + 13 * hidden);
    require(parameters <= most,
            fmt::format("it has about {:.3g} parameters; the most is 2^48", parameters));
}

/// Name, shape and group of the tensors of a block, in execution order.
std::vector<offload::TensorSpec> block_tensors(const Gpt2Config& config, std::uint32_t layer) {
    const std::uint64_t h = config.hidden;
    const std::uint64_t f = config.feed_forward;
    const std::string prefix = fmt::format("transformer.h.{}.", layer);
    std::vector<offload::TensorSpec> tensors;
    const auto add = [&](const char* name, std::vector<std::uint64_t> shape) {
        const auto group = shape.size() > 1 ? DecayGroup::decayed : DecayGroup::not_decayed;
        tensors.push_back({prefix + name, std::move(shape), static_cast<std::uint32_t>(group), 1});
    };
    add("ln_1.weight", {h});
    add("ln_1.bias", {h});
    add("attn.c_attn.weight", {3 * h, h});
    add("attn.c_attn.bias", {3 * h});
    add("attn.c_proj.weight", {h, h});
    add("attn.c_proj.bias", {h});
    add("ln_2.weight", {h});
    add("ln_2.bias", {h});
    add("mlp.c_fc.weight", {f, h});
    add("mlp.c_fc.bias", {f});
    add("mlp.c_proj.weight", {h, f});
    add("mlp.c_proj.bias", {h});
    return tensors;
}

constexpr offload::TensorId first_block_tensor = 2;
constexpr std::uint32_t tensors_per_block = 12;

}  // namespace

Gpt2Config parse_gpt2(std::string_view text) {
    if (!text.starts_with(family))
        throw std::invalid_argument(
            fmt::format("unknown model \"{}\": accepted is gpt2:LAYERSxHIDDENxHEADS", text));
    std::string_view rest = text.substr(family.size());
    Gpt2Config config;
    config.layers = take_number(text, rest, 'x');
    config.hidden = take_number(text, rest, 'x');
    config.heads = take_number(text, rest, '\0');
    return config;
}

void resolve(Gpt2Config& config) {
    constexpr std::uint32_t widest = 1u << 20;
    require(config.layers > 0 && config.layers <= most_layers,
            fmt::format("it has {} layers; it must have 1 to {}", config.layers, most_layers));
    require_range("hidden", config.hidden, widest);
    require(config.heads > 0, "it has 0 heads; at least 1 is needed");
    require(config.hidden % config.heads == 0,
            fmt::format("hidden is {} and heads {}; hidden must be a multiple of heads",
                        config.hidden, config.heads));
    require_range("the vocabulary", config.vocabulary, 1u << 24);
    require_range("the context", config.context, 1u << 24);
    if (config.feed_forward == 0)
        config.feed_forward = 4 * config.hidden;
    require(config.feed_forward <= 16 * widest,
            fmt::format("the feed-forward width is {}; the most is {}", config.feed_forward,
                        16 * widest));
    require_countable(config);
}

std::vector<offload::TensorSpec> gpt2_tensors(const Gpt2Config& config) {
    constexpr auto decayed = static_cast<std::uint32_t>(DecayGroup::decayed);
    constexpr auto not_decayed = static_cast<std::uint32_t>(DecayGroup::not_decayed);
    const std::uint64_t hidden = config.hidden;
    std::vector<offload::TensorSpec> tensors{
        {"transformer.wte.weight", {config.vocabulary, hidden}, decayed, 2},
        {"transformer.wpe.weight", {config.context, hidden}, decayed, 1}};
    for (std::uint32_t layer = 0; layer < config.layers; ++layer)
        for (auto& tensor : block_tensors(config, layer))
            tensors.push_back(std::move(tensor));
    tensors.push_back({"transformer.ln_f.weight", {hidden}, not_decayed, 1});
    tensors.push_back({"transformer.ln_f.bias", {hidden}, not_decayed, 1});
    return tensors;
}

std::vector<offload::Unit> gpt2_units(const Gpt2Config& config) {
    std::vector<offload::Unit> units{{0, 1}, {1, 1}};
    for (std::uint32_t layer = 0; layer < config.layers; ++layer)
        units.push_back({first_block_tensor + layer * tensors_per_block, tensors_per_block});
    units.push_back({first_block_tensor + config.layers * tensors_per_block, 2});
    return units;
}

std::vector<std::size_t> gpt2_evaluation_uses(const Gpt2Config& config) {
    std::vector<std::size_t> uses;
    for (std::size_t unit = 0; unit < config.layers + std::size_t{3}; ++unit)
        uses.push_back(unit);
    uses.push_back(0);
    return uses;
}

std::vector<std::size_t> gpt2_training_uses(const Gpt2Config& config,
                                            const std::vector<std::size_t>& again) {
    constexpr std::size_t first_block = 2;
    std::vector<std::size_t> uses = gpt2_evaluation_uses(config);
    for (std::size_t layer = config.layers; layer-- > 0;) {
        if (std::ranges::find(again, layer) != again.end())
            uses.push_back(first_block + layer - 1);
        uses.push_back(first_block + layer);
    }
    return uses;
}

}  // namespace spillway::engine
