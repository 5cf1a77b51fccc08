// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/config_file.h"

#include <optional>
#include <set>
#include <stdexcept>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/interop/input_file.h"

namespace spillway::engine {
namespace {

using Json = nlohmann::json;

std::optional<std::string> scalar_text(const Json& value) {
    if (value.is_string())
        return value.get<std::string>();
    if (value.is_boolean() || value.is_number())
        return value.dump();
    return std::nullopt;
}

std::optional<std::string> value_text(const Json& value) {
    if (!value.is_array())
        return scalar_text(value);
    std::string joined;
    for (const auto& item : value) {
        const auto text = scalar_text(item);
        if (!text)
            return std::nullopt;
        joined += (joined.empty() ? "" : ",") + *text;
    }
    return joined;
}

/// nlohmann keeps the last of two equal keys without a word; this looks while it reads.
Json parse_object(const std::string& text, const std::string& name,
                  std::vector<std::string>& problems) {
    constexpr int deepest = 16;
    bool too_deep = false;
    std::set<std::string> seen;
    const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
        if (depth > deepest) {
            too_deep = true;
            return false;
        }
        if (event == Json::parse_event_t::key && depth == 1 &&
            !seen.insert(parsed.get<std::string>()).second)
            problems.push_back(fmt::format("{}: \"{}\" stands there twice; keep one of them", name,
                                           parsed.get<std::string>()));
        return true;
    };
    try {
        auto parsed = Json::parse(text, watch);
        if (too_deep) {
            problems.push_back(
                fmt::format("{}: is nested more than {} deep; options are a text, a "
                            "number, a boolean or a list of these",
                            name, deepest));
            return Json::object();
        }
        if (parsed.is_object())
            return parsed;
        problems.push_back(fmt::format(
            "{}: holds a JSON {}; an object of options is needed, such as {{\"seed\": 1}}", name,
            parsed.type_name()));
    } catch (const Json::exception& error) {
        problems.push_back(fmt::format("{}: is not JSON: {}", name, json_reason(error)));
    }
    return Json::object();
}

}  // namespace

std::vector<ConfigEntry> read_config_file(const std::filesystem::path& path,
                                          std::vector<std::string>& problems) {
    const auto name = "--config " + path.string();
    std::string file;
    try {
        file = read_regular_file(path);
    } catch (const std::runtime_error& error) {
        problems.push_back(fmt::format("{}: {}; name an existing JSON file", name, error.what()));
        return {};
    }
    std::vector<ConfigEntry> entries;
    const auto object = parse_object(file, name, problems);
    for (const auto& [key, value] : object.items()) {
        if (value.is_null())
            continue;
        if (auto text = value_text(value))
            entries.push_back({key, *std::move(text)});
        else
            problems.push_back(
                fmt::format("{}: \"{}\" holds {}; a text, a number, a boolean or a "
                            "list of these is needed",
                            name, key, value.dump()));
    }
    return entries;
}

}  // namespace spillway::engine
