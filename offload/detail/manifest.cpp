// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/manifest.h"

#include <algorithm>
#include <initializer_list>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "offload/detail/durable_files.h"

namespace spillway::offload::detail {
namespace {

using Json = nlohmann::ordered_json;  // keeps the order in which a person reads it best

constexpr std::uint64_t one_drive_version = 1;
constexpr std::uint64_t several_drives_version = 2;  ///< has more_extents and region_tiles

[[noreturn]] void refuse(const std::string& what) {
    throw FolderRefused(what);
}

/// A JSON object in which every field must be asked for, and none may be left.
class Fields {
  public:
    Fields(const Json& object, std::string where, std::initializer_list<const char*> known)
        : object_(object), where_(std::move(where)) {
        if (!object.is_object())
            refuse(fmt::format("{} is not a JSON object", where_));
        for (const auto& [key, value] : object.items()) {
            if (std::find(known.begin(), known.end(), key) == known.end())
                refuse(
                    fmt::format("{} has an unknown field '{}'; it was written by another Spillway",
                                where_, key));
        }
    }
    [[nodiscard]] const Json& at(const char* key) const {
        const auto found = object_.find(key);
        if (found == object_.end())
            refuse(fmt::format("{} lacks the field '{}'", where_, key));
        return *found;
    }
    [[nodiscard]] std::string text(const char* key) const {
        const auto& value = at(key);
        if (!value.is_string())
            wrong(key, "a string");
        return value.get<std::string>();
    }
    [[nodiscard]] std::uint64_t number(const char* key,
                                       std::uint64_t limit = ~std::uint64_t{0}) const {
        const auto& value = at(key);
        if (!value.is_number_unsigned() || value.get<std::uint64_t>() > limit)
            wrong(key, fmt::format("a whole number from 0 to {}", limit));
        return value.get<std::uint64_t>();
    }
    [[noreturn]] void wrong(const char* key, const std::string& needed) const {
        refuse(fmt::format("{}: the field '{}' is {}, needed is {}", where_, key,
                           at(key).dump().substr(0, 80), needed));
    }

  private:
    const Json& object_;
    std::string where_;
};

Json tensor_json(const TensorSpec& tensor) {
    return {{"name", tensor.name},
            {"shape", tensor.shape},
            {"group", tensor.group},
            {"contributions", tensor.contributions}};
}

TensorSpec parse_tensor(const Json& json, std::size_t index) {
    const Fields fields(json, fmt::format("tensor {}", index),
                        {"name", "shape", "group", "contributions"});
    constexpr std::uint64_t most = ~std::uint32_t{0};
    TensorSpec tensor{
        .name = fields.text("name"),
        .shape = {},
        .group = static_cast<std::uint32_t>(fields.number("group", most)),
        .contributions = static_cast<std::uint32_t>(fields.number("contributions", most))};
    const auto& shape = fields.at("shape");
    if (!shape.is_array())
        fields.wrong("shape", "an array");
    for (const auto& extent : shape) {
        if (!extent.is_number_unsigned())
            fields.wrong("shape", "an array of whole numbers");
        tensor.shape.push_back(extent.get<std::uint64_t>());
    }
    return tensor;
}

std::vector<TensorSpec> parse_tensors(const Json& json) {
    if (!json.is_array())
        refuse("the field 'tensors' is not an array");
    std::vector<TensorSpec> tensors;
    for (const auto& tensor : json)
        tensors.push_back(parse_tensor(tensor, tensors.size()));
    try {
        static_cast<void>(ElementOrder(tensors));
    } catch (const std::invalid_argument& error) {
        refuse(error.what());
    }
    return tensors;
}

Json plane_names(PlaneSet planes) {
    auto names = Json::array();
    for (const auto plane : planes)
        names.push_back(plane_name(plane));
    return names;
}

PlaneSet parse_planes(const Fields& fields) {
    const auto& json = fields.at("planes");
    PlaneSet planes;
    for (std::uint8_t index = 0; index < plane_count; ++index) {
        if (json.is_array() &&
            std::ranges::find(json, Json(plane_name(Plane{index}))) != json.end())
            planes.insert(Plane{index});
    }
    if (json != plane_names(planes) ||
        planes != planes_with_weights(state_plane_count(planes), state_format_of(planes)))
        fields.wrong("planes",
                     "a list that holds \"weight\" and \"residue\", and perhaps state: \"m\", "
                     "\"v\" and \"extra\", or \"m_bf16\" and \"v_bf16\", or \"m_int8\", "
                     "\"v_int8\" and \"scales\", in that order");
    return planes;
}

RunId parse_run(const std::string& text) {
    try {
        return RunId::parse(text);
    } catch (const std::invalid_argument& error) {
        refuse(error.what());
    }
}

/// Only places that create() makes, so that nothing else can ever be opened or removed by a
/// manifest.
std::filesystem::path parse_extents(const std::string& text, const RunId& run,
                                    const std::filesystem::path& state_folder) {
    if (text == inner_extents_name)
        return state_folder / inner_extents_name;
    std::filesystem::path path(text);
    if (!path.is_absolute() || path.lexically_normal() != path || path.filename() != run.text() ||
        path.parent_path().filename() != StateFolder::extents_name)
        refuse(fmt::format(
            "the field 'extents' is '{}', needed is '{}' or an absolute path that ends in '{}/{}'",
            text, inner_extents_name, StateFolder::extents_name, run.text()));
    return path;
}

void parse_more_extents(const Fields& fields, Manifest& manifest,
                        const std::filesystem::path& state_folder) {
    constexpr std::size_t most_drives = 1024;
    manifest.region_tiles = fields.number("region_tiles", std::uint64_t{1} << 20);
    const auto& list = fields.at("more_extents");
    if (!list.is_array() || list.empty() || list.size() >= most_drives ||
        manifest.region_tiles == 0)
        fields.wrong("more_extents", "a list of folders, with region_tiles of at least 1");
    for (const auto& folder : list) {
        if (!folder.is_string())
            fields.wrong("more_extents", "a list of folders");
        manifest.more_extents.push_back(
            parse_extents(folder.get<std::string>(), manifest.run, state_folder));
    }
}

Manifest parse_fields(const Json& json, const std::filesystem::path& state_folder) {
    const bool several = json.is_object() && json.contains("format_version") &&
                         json["format_version"] == several_drives_version;
    if (json.is_object() && json.contains("format_version") && !several &&
        json["format_version"] != one_drive_version)
        refuse(fmt::format(
            "its format version is {}; this Spillway reads {} and {}: use the Spillway that wrote "
            "it",
            json["format_version"].dump(), one_drive_version, several_drives_version));
    const Fields fields =
        several ? Fields(json, "the manifest",
                         {"format_version", "run", "generation", "durability", "extents",
                          "more_extents", "region_tiles", "planes", "tensors", "settings"})
                : Fields(json, "the manifest",
                         {"format_version", "run", "generation", "durability", "extents", "planes",
                          "tensors", "settings"});
    static_cast<void>(fields.at("format_version"));
    Manifest manifest;
    manifest.run = parse_run(fields.text("run"));
    manifest.generation = fields.number("generation");
    manifest.durability = fields.text("durability");
    if (manifest.durability != "on" && manifest.durability != "off")
        fields.wrong("durability", "\"on\" or \"off\"");
    manifest.extents_folder = parse_extents(fields.text("extents"), manifest.run, state_folder);
    if (several)
        parse_more_extents(fields, manifest, state_folder);
    manifest.planes = parse_planes(fields);
    manifest.tensors = parse_tensors(fields.at("tensors"));
    if (!fields.at("settings").is_object())
        fields.wrong("settings", "a JSON object");
    manifest.client_settings = fields.at("settings").dump();
    return manifest;
}

Json parse_settings(std::string_view settings) {
    auto json = Json::parse(settings, nullptr, false);
    if (!json.is_object())
        throw std::invalid_argument(fmt::format(
            "the run's settings must be a JSON object; they are '{}'", settings.substr(0, 80)));
    return json;
}

}  // namespace

std::string manifest_text(const Manifest& manifest, const std::filesystem::path& state_folder) {
    const bool inside = manifest.extents_folder == state_folder / inner_extents_name;
    const bool several = !manifest.more_extents.empty();
    Json json{{"format_version", several ? several_drives_version : one_drive_version},
              {"run", manifest.run.text()},
              {"generation", manifest.generation},
              {"durability", manifest.durability},
              {"extents", inside ? inner_extents_name : manifest.extents_folder.string()},
              {"planes", plane_names(manifest.planes)},
              {"tensors", Json::array()},
              {"settings", parse_settings(manifest.client_settings)}};
    if (several) {
        json["region_tiles"] = manifest.region_tiles;
        json["more_extents"] = Json::array();
        for (const auto& folder : manifest.more_extents)
            json["more_extents"].push_back(folder.string());
    }
    for (const auto& tensor : manifest.tensors)
        json["tensors"].push_back(tensor_json(tensor));
    try {
        return json.dump(1) + "\n";
    } catch (const Json::type_error&) {
        throw std::invalid_argument(fmt::format(
            "a tensor's name or the path {} is not UTF-8; the manifest can only hold UTF-8",
            manifest.extents_folder.string()));
    }
}

Manifest parse_manifest(std::string_view text, const std::filesystem::path& state_folder) {
    const auto json = Json::parse(text, nullptr, false);
    if (json.is_discarded())
        refuse("it is not valid JSON (damaged or cut short)");
    return parse_fields(json, state_folder);
}

Manifest read_manifest(const std::filesystem::path& state_folder, const char* name) {
    const auto path = state_folder / name;
    try {
        return parse_manifest(read_text(path, manifest_limit_bytes), state_folder);
    } catch (const std::runtime_error& error) {
        throw FolderRefused(fmt::format("cannot use {}: {}", path.string(), error.what()));
    }
}

std::string normalised_settings(std::string_view settings) {
    return parse_settings(settings).dump();
}

}  // namespace spillway::offload::detail
