// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/verbs/inspect.h"

#include <filesystem>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "engine/cli/backend_option.h"
#include "engine/cli/option_set.h"
#include "engine/cli/output_place.h"
#include "engine/train/train_report.h"
#include "offload/state_reader.h"

namespace spillway::engine {

namespace {

using Json = nlohmann::ordered_json;

struct InspectArguments {
    std::filesystem::path out;
    std::string verify = "on";
    std::string io_backend = "auto";
    std::string json;
};

/// The client's settings are JSON, but of another layer's making: what does not parse is shown as
/// it is.
Json settings_of(const offload::Manifest& manifest) {
    auto settings = Json::parse(manifest.client_settings, nullptr, /*allow_exceptions=*/false);
    return settings.is_discarded() ? Json(manifest.client_settings) : settings;
}

std::string extents_of(const offload::Manifest& manifest) {
    std::string text;
    for (const auto& folder : manifest.all_extents())
        text += (text.empty() ? "" : ", ") + folder.string();
    return text;
}

Json more_extents_json(const offload::Manifest& manifest) {
    auto list = Json::array();
    for (const auto& folder : manifest.more_extents)
        list.push_back(folder.string());
    return list;
}

void show_run(const offload::StateReader& reader, Console& console) {
    const auto& manifest = reader.manifest();
    const auto& commit = reader.commit();
    console.line(fmt::format("run        {}", manifest.run.text()));
    console.line(fmt::format("extents    {} (generation {}, durable {})", extents_of(manifest),
                             manifest.generation, manifest.durability));
    console.line(fmt::format("commit     {}: step {}, update {}", commit.sequence, commit.iteration,
                             commit.update));
    console.line(fmt::format("parameters {} in {} tensors, {} tiles", reader.order().parameters(),
                             manifest.tensors.size(), reader.order().tiles()));
    console.line("settings");
    const auto settings = settings_of(manifest);
    if (!settings.is_object()) {
        console.line("  " + settings.dump(-1, ' ', false, Json::error_handler_t::replace));
        return;
    }
    for (const auto& [key, value] : settings.items())
        console.line(fmt::format("  {:<20} {}", key,
                                 value.dump(-1, ' ', false, Json::error_handler_t::replace)));
}

void show_tensors(const offload::StateReader& reader, Console& console) {
    console.line("tensors (updates, shape, name)");
    const auto tensors = reader.order().tensors();
    for (std::size_t i = 0; i < tensors.size(); ++i)
        console.line(fmt::format("  {:>8}  {:<16} {}", reader.commit().tensor_steps.at(i),
                                 fmt::format("{}", fmt::join(tensors[i].shape, " x ")),
                                 tensors[i].name));
}

void show_verdict(const offload::VerifyReport& report, Console& console) {
    for (const auto& damage : report.damage)
        console.error(damage);
    if (report.damage.empty())
        console.line(fmt::format("verified   {} tiles, {} in {:.1f} s: whole", report.tiles_checked,
                                 human_bytes(report.bytes_checked), report.wall_s));
    else
        console.error(fmt::format("{} places of {} tiles checked are damaged", report.damage.size(),
                                  report.tiles_checked));
}

Json tensors_json(const offload::StateReader& reader) {
    auto list = Json::array();
    const auto tensors = reader.order().tensors();
    for (std::size_t i = 0; i < tensors.size(); ++i)
        list.push_back({{"name", tensors[i].name},
                        {"shape", tensors[i].shape},
                        {"group", tensors[i].group},
                        {"updates", reader.commit().tensor_steps.at(i)}});
    return list;
}

Json report_json(const InspectArguments& given, const offload::StateReader& reader,
                 const std::optional<offload::VerifyReport>& report) {
    const auto& manifest = reader.manifest();
    const auto& commit = reader.commit();
    Json root{{"folder", given.out.string()},
              {"run", manifest.run.text()},
              {"extents_folder", manifest.extents_folder.string()},
              {"more_extents", more_extents_json(manifest)},
              {"generation", manifest.generation},
              {"durable", manifest.durability}};
    root["commit"] = {
        {"sequence", commit.sequence}, {"iteration", commit.iteration}, {"update", commit.update}};
    root["parameters"] = reader.order().parameters();
    root["tiles"] = reader.order().tiles();
    root["settings"] = settings_of(manifest);
    root["tensors"] = tensors_json(reader);
    root["verified"] = report.has_value();
    if (report) {
        root["tiles_checked"] = report->tiles_checked;
        root["bytes_checked"] = report->bytes_checked;
        root["verify_s"] = report->wall_s;
        root["damage"] = report->damage;
    }
    return root;
}

}  // namespace

int run_inspect(std::span<const std::string> arguments, Console& console) {
    InspectArguments given;
    OptionSet options("inspect", "Lists what a run's folder holds and verifies every checksum.");
    options.add_positional({"out", "OUT", "the run's folder", ""}, given.out);
    options.add_choice(
        {"verify", "on|off", "read all stored tiles and compare their checksums", ""},
        {"on", "off"}, given.verify);
    add_backend_option(options, given.io_backend);
    add_json_option(options, given.json);
    if (options.parse(arguments) == OptionSet::Outcome::help_wanted) {
        console.result(options.help());
        return as_int(ExitCode::done);
    }
    if (!options.given("out"))
        throw UsageError("inspect needs the run's folder: `spillway inspect OUT`");
    offload::StateReader reader(given.out, backend_kind(given.io_backend));
    show_run(reader, console);
    show_tensors(reader, console);
    std::optional<offload::VerifyReport> report;
    if (given.verify == "on") {
        report = reader.verify();
        show_verdict(*report, console);
    }
    if (!given.json.empty())
        console.write_json(
            report_json(given, reader, report).dump(2, ' ', false, Json::error_handler_t::replace),
            given.json);
    return as_int(report && !report->damage.empty() ? ExitCode::failed : ExitCode::done);
}

}  // namespace spillway::engine
