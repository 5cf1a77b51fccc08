// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/verbs/generate.h"

#include <algorithm>
#include <filesystem>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cpu_optim/isa.h"
#include "cuda/cpu_device.h"
#include "engine/cli/backend_option.h"
#include "engine/cli/option_set.h"
#include "engine/cli/output_place.h"
#include "engine/cli/weights_option.h"
#include "engine/compute/compute_pool.h"
#include "engine/interop/huggingface_gpt2.h"
#include "engine/interop/run_model.h"
#include "engine/measure/machine_memory.h"
#include "engine/model/text_generator.h"
#include "offload/plan.h"
#include "offload/state_reader.h"

namespace spillway::engine {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t most_tokens = std::uint64_t{1} << 40;

struct GenerateArguments {
    fs::path model;
    std::string prompt = "\n";
    std::uint64_t tokens = 256;
    SamplingOptions sampling;
    std::uint64_t host_mem_bytes = 0;
    std::uint32_t threads = 0;
    std::string isa = "auto";
    std::string weights = "last";
    std::string io_backend = "auto";
    std::string json;
};

/// A model to load, whatever it is stored in.
struct StoredModel {
    Gpt2Config config;
    ReadTensor read;
};

StoredModel open_run(const GenerateArguments& given) {
    auto reader =
        std::make_shared<offload::StateReader>(given.model, backend_kind(given.io_backend));
    const auto kind = stored_weights(*reader, given.weights);
    return {model_of_run(reader->manifest()),
            [reader, kind](offload::TensorId tensor, std::span<float> out) {
                reader->visit_tensor(
                    tensor,
                    [&](offload::TensorId, std::uint64_t first, std::span<const float> values) {
                        std::copy(values.begin(), values.end(),
                                  out.begin() + static_cast<std::ptrdiff_t>(first));
                    },
                    kind);
            }};
}

/// A folder with a tokenizer of its own would be fed nonsense.
void require_byte_model(const fs::path& folder, const Gpt2Config& config) {
    for (const char* tokenizer : {"tokenizer.json", "vocab.json", "tokenizer.model"}) {
        if (fs::exists(folder / tokenizer))
            throw UsageError(
                fmt::format("{} has a tokenizer ({}, {} tokens); generate takes bytes "
                            "as tokens and has no tokenizers in this version",
                            folder.string(), tokenizer, config.vocabulary));
    }
}

StoredModel open_model(const GenerateArguments& given) {
    if (offload::StateFolder::holds_run(given.model))
        return open_run(given);
    if (!fs::exists(given.model / huggingface_config_name))
        throw UsageError(fmt::format("{} holds neither a run ({}) nor a Hugging Face model ({})",
                                     given.model.string(), offload::StateFolder::folder_name,
                                     huggingface_config_name));
    if (given.weights != "last")
        throw UsageError(fmt::format(
            "--weights {}: {} is a Hugging Face folder, which holds one set of weights; name a "
            "run's folder, or leave it out",
            given.weights, given.model.string()));
    auto model = std::make_shared<HuggingfaceGpt2>(given.model);
    require_byte_model(given.model, model->config());
    return {model->config(), [model](offload::TensorId tensor, std::span<float> out) {
                model->read_tensor(tensor, out);
            }};
}

std::uint64_t host_budget(const GenerateArguments& given, Console& console) {
    if (given.host_mem_bytes > 0)
        return given.host_mem_bytes;
    const auto available = available_memory();
    const auto margin = memory_margin(available.bytes);
    const auto budget = available.bytes - std::min(available.bytes, margin);
    console.line(fmt::format("host memory: {} bytes (free by {}, less a margin of {})", budget,
                             available.limited_by, margin));
    return budget;
}

void declare(OptionSet& options, GenerateArguments& given) {
    options.add_positional(
        {"model", "FOLDER", "a run's folder, or a Hugging Face folder of a byte model", ""},
        given.model);
    options.add({"prompt", "TEXT", "what to go on from, as bytes", "a line end"}, given.prompt);
    options.add({"tokens", "N", "bytes to write", ""}, given.tokens);
    options.add({"temperature", "X", "1 as learnt, less is safer, 0 always the likeliest", ""},
                given.sampling.temperature);
    options.add({"top-k", "K", "draw among the K likeliest; 0 among all", ""},
                given.sampling.top_k);
    options.add({"seed", "N", "of the draws", ""}, given.sampling.seed);
    options.add_bytes({"host-mem", "BYTES", "memory to use", "free memory minus a margin"},
                      given.host_mem_bytes);
    options.add({"threads", "N", "threads to compute with", "all processors"}, given.threads);
    options.add({"isa", "NAME", "instruction set of the kernels", ""}, given.isa);
    add_weights_option(options, given.weights);
    add_backend_option(options, given.io_backend);
    add_json_option(options, given.json,
                    "where the result goes as JSON; with - in place of the text");
}

std::string write_text(TextGenerator& generator, const GenerateArguments& given, Console& console) {
    std::string text;
    TokenSampler sampler(given.sampling);
    if (given.json != "-")
        console.result(given.prompt);
    generator.generate(given.prompt, given.tokens, sampler, [&](char byte) {
        text += byte;
        if (given.json != "-")
            console.result(std::string_view(&byte, 1));
    });
    if (given.json != "-")
        console.result("\n");
    return text;
}

std::string result_json(const GenerateArguments& given, const std::string& text) {
    const nlohmann::ordered_json root{
        {"model", given.model.string()}, {"weights", given.weights},
        {"prompt", given.prompt},        {"text", text},
        {"tokens", text.size()},         {"temperature", given.sampling.temperature},
        {"top_k", given.sampling.top_k}, {"seed", given.sampling.seed}};
    // A model may write bytes that are no UTF-8.
    return root.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void require_sound(const OptionSet& options, const GenerateArguments& given) {
    if (!options.given("model"))
        throw UsageError("generate needs a folder: `spillway generate FOLDER`");
    try {
        static_cast<void>(TokenSampler(given.sampling));
        static_cast<void>(cpu_optim::parse_isa(given.isa));
    } catch (const std::invalid_argument& error) {
        throw UsageError(error.what());
    }
    if (given.threads > most_threads)
        throw UsageError(
            fmt::format("--threads is {}; at most {} can compute", given.threads, most_threads));
    if (given.tokens > most_tokens)
        throw UsageError(
            fmt::format("--tokens is {}; at most {} are written", given.tokens, most_tokens));
    if (given.prompt.empty())
        throw UsageError("--prompt is empty; a model needs something to go on from");
}

}  // namespace

int run_generate(std::span<const std::string> arguments, Console& console) {
    GenerateArguments given;
    OptionSet options("generate", "Writes text with a trained model, a byte a token.");
    declare(options, given);
    if (options.parse(arguments) == OptionSet::Outcome::help_wanted) {
        console.result(options.help());
        return as_int(ExitCode::done);
    }
    require_sound(options, given);
    const auto model = open_model(given);
    const auto threads =
        given.threads > 0 ? given.threads : std::min(usable_processors(), most_threads);
    const auto window = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(model.config.context, given.prompt.size() + given.tokens));
    const auto needed = TextGenerator::needed_bytes(model.config, window, threads);
    const auto budget = host_budget(given, console);
    if (needed > budget)
        throw offload::PlanRefused("host memory", needed, budget,
                                   "generate holds all weights as fp32: raise --host-mem, or use a "
                                   "machine with more memory");
    const auto device = cuda::make_cpu_device(needed);
    ComputePool pool(threads, cpu_optim::parse_isa(given.isa));
    TextGenerator generator(*device, pool, model.config, window, model.read);
    const auto text = write_text(generator, given, console);
    if (!given.json.empty())
        console.write_json(result_json(given, text), given.json);
    return as_int(ExitCode::done);
}

}  // namespace spillway::engine
