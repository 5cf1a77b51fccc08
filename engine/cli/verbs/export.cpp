// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/verbs/export.h"

#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/cli/backend_option.h"
#include "engine/cli/option_set.h"
#include "engine/cli/output_place.h"
#include "engine/cli/weights_option.h"
#include "engine/interop/huggingface_gpt2.h"
#include "engine/interop/run_model.h"
#include "engine/train/train_report.h"
#include "offload/state_reader.h"

namespace spillway::engine {

namespace {

struct ExportArguments {
    std::filesystem::path out;
    std::filesystem::path destination;
    std::string dtype = "fp32";
    std::string weights = "last";
    std::string io_backend = "auto";
    std::string json;
};

void require_folders(const OptionSet& options, const ExportArguments& given) {
    if (!options.given("out") || !options.given("destination"))
        throw UsageError(
            "export needs two folders: that of the run and a new one, `spillway "
            "export OUT DESTINATION`");
    try {
        check_export_folder(given.destination);
    } catch (const std::runtime_error& error) {
        throw UsageError(error.what());
    }
}

std::string summary_json(const ExportArguments& given, const offload::StateReader& reader,
                         const ExportSummary& summary) {
    const nlohmann::ordered_json root{{"out", given.out.string()},
                                      {"destination", given.destination.string()},
                                      {"dtype", given.dtype},
                                      {"weights", given.weights},
                                      {"iteration", reader.commit().iteration},
                                      {"update", reader.commit().update},
                                      {"tensors", summary.tensors},
                                      {"parameters", summary.parameters},
                                      {"file_bytes", summary.file_bytes}};
    return root.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

ExportSummary export_run(const ExportArguments& given, offload::StateReader& reader,
                         Console& console) {
    const auto config = model_of_run(reader.manifest());
    const auto tensors = reader.order().tensors();
    const auto kind = stored_weights(reader, given.weights);
    const VisitTensor visit = [&](offload::TensorId tensor, const TensorPieces& pieces) {
        console.progress(fmt::format("exporting tensor {} of {}: {}", tensor + 1, tensors.size(),
                                     tensors[tensor].name));
        reader.visit_tensor(
            tensor,
            [&](offload::TensorId, std::uint64_t first, std::span<const float> values) {
                pieces(first, values);
            },
            kind);
    };
    const auto dtype = given.dtype == "bf16" ? TensorDtype::bf16 : TensorDtype::f32;
    const auto summary =
        export_huggingface_gpt2(config, visit, given.destination, {.dtype = dtype});
    console.clear_progress();
    return summary;
}

}  // namespace

int run_export(std::span<const std::string> arguments, Console& console) {
    ExportArguments given;
    OptionSet options("export",
                      "Writes the weights of a run's last commit as a Hugging Face folder "
                      "(config.json, model.safetensors).");
    options.add_positional({"out", "OUT", "the run's folder", ""}, given.out);
    options.add_positional(
        {"destination", "DESTINATION", "the folder to write, missing or empty", ""},
        given.destination);
    options.add_choice(
        {"dtype", "fp32|bf16", "type of the weights: masters or working weights", ""},
        {"fp32", "bf16"}, given.dtype);
    add_weights_option(options, given.weights);
    add_backend_option(options, given.io_backend);
    add_json_option(options, given.json, "where a summary goes as JSON", &given.destination);
    options.refuse("optimizer-state");
    if (options.parse(arguments) == OptionSet::Outcome::help_wanted) {
        console.result(options.help());
        return as_int(ExitCode::done);
    }
    require_folders(options, given);
    offload::StateReader reader(given.out, backend_kind(given.io_backend));
    const auto summary = export_run(given, reader, console);
    console.line(fmt::format("exported {} parameters in {} tensors ({}, {}) of step {} to {}",
                             summary.parameters, summary.tensors, given.dtype,
                             human_bytes(summary.file_bytes), reader.commit().iteration,
                             given.destination.string()));
    if (!given.json.empty())
        console.write_json(summary_json(given, reader, summary), given.json);
    return as_int(ExitCode::done);
}

}  // namespace spillway::engine
