// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/state/manifest.h"

#include <algorithm>
#include <initializer_list>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "offload/detail/files/durable_files.h"

namespace spillway::offload::detail {
namespace {

using Json = nlohmann::ordered_json;  // keeps the order in which a person reads it best

constexpr std::uint64_t one_drive_version = 1;
constexpr std::uint64_t several_drives_version = 2;  ///< has more_extents and region_tiles
constexpr std::uint64_t moved_version = 3;           ///< and first_file and former_extents

constexpr const char* factored_name = "factored";  ///< second moments; of others there is no field

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
    [[nodiscard]] bool has(const char* key) const { return object_.contains(key); }
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
    auto without_average = planes;
    without_average.erase(Plane::average);
    if (json != plane_names(planes) ||
        without_average != planes_with_weights(state_plane_count(planes), state_format_of(planes)))
        fields.wrong("planes",
                     "a list that holds \"weight\" and \"residue\", and perhaps state: \"m\", "
                     "\"v\" and \"extra\", or \"m_bf16\" and \"v_bf16\", or \"m_int8\", "
                     "\"v_int8\" and \"scales\", and perhaps \"average\", in that order");
    return planes;
}

Json average_json(const AverageBasis& average) {
    return {{"kind", average_kind_name(average.kind)}, {"every", average.every}};
}

AverageBasis parse_average_basis(const Json& json) {
    const Fields fields(json, "the average", {"kind", "every"});
    const AverageBasis average{
        .kind = fields.text("kind") == "ema" ? AverageKind::ema : AverageKind::swa,
        .every = fields.number("every")};
    if (fields.text("kind") != average_kind_name(average.kind))
        fields.wrong("kind", "\"ema\" or \"swa\"");
    if (average.every == 0)
        fields.wrong("every", "at least 1");
    return average;
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

std::vector<std::filesystem::path> parse_folders(const Fields& fields, const char* key,
                                                 const RunId& run,
                                                 const std::filesystem::path& state_folder) {
    constexpr std::size_t most_drives = 1024;
    const auto& list = fields.at(key);
    if (!list.is_array() || list.size() >= most_drives)
        fields.wrong(key, "a list of folders");
    std::vector<std::filesystem::path> folders;
    for (const auto& folder : list) {
        if (!folder.is_string())
            fields.wrong(key, "a list of folders");
        folders.push_back(parse_extents(folder.get<std::string>(), run, state_folder));
    }
    return folders;
}

void parse_several_drives(const Fields& fields, Manifest& manifest,
                          const std::filesystem::path& state_folder) {
    manifest.region_tiles = fields.number("region_tiles", std::uint64_t{1} << 20);
    manifest.more_extents = parse_folders(fields, "more_extents", manifest.run, state_folder);
    if (manifest.more_extents.empty() != (manifest.region_tiles == 0))
        fields.wrong("region_tiles", "0 with one drive, and at least 1 with several");
}

void parse_move(const Fields& fields, Manifest& manifest,
                const std::filesystem::path& state_folder) {
    constexpr std::uint64_t most_files = std::uint64_t{1} << 40;
    manifest.first_file = fields.number("first_file", most_files);
    manifest.former_extents = parse_folders(fields, "former_extents", manifest.run, state_folder);
}

/// Throws unless it is one that this program reads.
std::uint64_t version_of(const Json& json) {
    if (!json.is_object())
        refuse("the manifest is not a JSON object");
    if (!json.contains("format_version"))
        refuse("the manifest lacks the field 'format_version'");
    const auto& version = json["format_version"];
    if (version != one_drive_version && version != several_drives_version &&
        version != moved_version)
        refuse(
            fmt::format("its format version is {}; this Spillway reads {} to {}: use the "
                        "Spillway that wrote it",
                        version.dump(), one_drive_version, moved_version));
    return version.get<std::uint64_t>();
}

Fields fields_of(const Json& json, std::uint64_t version) {
    if (version == one_drive_version)
        return {json,
                "the manifest",
                {"format_version", "run", "generation", "durability", "extents", "planes",
                 "average", "second_moments", "tensors", "settings"}};
    if (version == several_drives_version)
        return {json,
                "the manifest",
                {"format_version", "run", "generation", "durability", "extents", "more_extents",
                 "region_tiles", "planes", "average", "second_moments", "tensors", "settings"}};
    return {json,
            "the manifest",
            {"format_version", "run", "generation", "durability", "extents", "more_extents",
             "region_tiles", "first_file", "former_extents", "planes", "average", "second_moments",
             "tensors", "settings"}};
}

Manifest parse_fields(const Json& json, const std::filesystem::path& state_folder) {
    const auto version = version_of(json);
    const auto fields = fields_of(json, version);
    Manifest manifest;
    manifest.run = parse_run(fields.text("run"));
    manifest.generation =
        version == moved_version ? fields.number("generation") : fields.number("generation", 0);
    manifest.durability = fields.text("durability");
    if (manifest.durability != "on" && manifest.durability != "off")
        fields.wrong("durability", "\"on\" or \"off\"");
    manifest.extents_folder = parse_extents(fields.text("extents"), manifest.run, state_folder);
    if (version != one_drive_version)
        parse_several_drives(fields, manifest, state_folder);
    if (version == moved_version)
        parse_move(fields, manifest, state_folder);
    manifest.planes = parse_planes(fields);
    if (fields.has("average")) {
        if (!manifest.planes.contains(Plane::average))
            fields.wrong("average", "none, since there is no plane of that name");
        manifest.average = parse_average_basis(fields.at("average"));
    }
    if (fields.has("second_moments")) {
        if (fields.text("second_moments") != factored_name)
            fields.wrong("second_moments", "\"factored\"");
        manifest.second_moments = SecondMoments::factored;
    }
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
    const auto text_of = [&](const std::filesystem::path& folder) {
        return folder == state_folder / inner_extents_name ? std::string(inner_extents_name)
                                                           : folder.string();
    };
    const auto list_of = [&](const std::vector<std::filesystem::path>& folders) {
        auto list = Json::array();
        for (const auto& folder : folders)
            list.push_back(text_of(folder));
        return list;
    };
    const auto version = manifest.generation > 0         ? moved_version
                         : manifest.more_extents.empty() ? one_drive_version
                                                         : several_drives_version;
    Json json{{"format_version", version},
              {"run", manifest.run.text()},
              {"generation", manifest.generation},
              {"durability", manifest.durability},
              {"extents", text_of(manifest.extents_folder)},
              {"planes", plane_names(manifest.planes)},
              {"tensors", Json::array()},
              {"settings", parse_settings(manifest.client_settings)}};
    if (version != one_drive_version) {
        json["region_tiles"] = manifest.region_tiles;
        json["more_extents"] = list_of(manifest.more_extents);
    }
    if (version == moved_version) {
        json["first_file"] = manifest.first_file;
        json["former_extents"] = list_of(manifest.former_extents);
    }
    if (manifest.average)
        json["average"] = average_json(*manifest.average);
    if (manifest.second_moments == SecondMoments::factored)
        json["second_moments"] = factored_name;
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
