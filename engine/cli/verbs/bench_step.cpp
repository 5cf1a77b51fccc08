// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/cli/option_set.h"
#include "engine/cli/output_place.h"
#include "engine/cli/units.h"
#include "engine/cli/verbs/bench.h"
#include "engine/cli/verbs/bench_problems.h"
#include "engine/cli/verbs/bench_step_run.h"
#include "engine/cli/verbs/bench_step_tune.h"
#include "engine/measure/drive_choice.h"
#include "engine/measure/machine_memory.h"
#include "engine/settings/optimizer_choice.h"
#include "engine/train/stop_request.h"
#include "engine/train/trace_json.h"
#include "engine/train/trace_place.h"
#include "engine/train/train_report.h"

namespace spillway::engine {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t host_bytes_beside_a_drive = std::uint64_t{256} << 20;

/// As given, choices still texts.
struct Given {
    TrainSettings settings;  ///< of which optimizer, drives, placement and files are used
    std::uint64_t elements = std::uint64_t{64} << 20;
    std::uint64_t host_bytes = 0;
    std::uint32_t steps = 5;
    double tune_s = 0;  ///< 0: no search
};

void declare(OptionSet& options, Given& given) {
    auto& settings = given.settings;
    options.add_choice({"optimizer", "", "whose step is measured", ""}, measured_optimizer_names(),
                       settings.optimizer);
    options.add_choice({"state", "", "format of the moments", ""}, {"fp32", "bf16", "int8"},
                       settings.state);
    options.add({"elements", "N", "parameters", ""}, given.elements);
    options.add_bytes({"host-mem", "BYTES", "memory for state, residues and staging",
                       "256MiB with --nvme, else what they need"},
                      given.host_bytes);
    options.add({"nvme", "DIR[,DIR]", "folders on the drives for what does not fit", "none"},
                settings.nvme);
    options.add_choice({"durable", "", "two copies of all state on the drives, or one", ""},
                       {"on", "off"}, settings.durable);
    options.add_bytes({"chunk-size", "BYTES", "of fp32 values in a chunk", "chosen by the plan"},
                      settings.tuning.chunk_bytes);
    options.add(
        {"momentum", "X", "of sgd, rmsprop and lars; 0: none, and no state for it but lars'", ""},
        settings.momentum);
    options.add({"threads", "N", "threads that compute", "every processor"}, settings.threads);
    options.add({"isa", "auto|scalar|avx2|avx512", "instruction set of the kernels", ""},
                settings.isa);
    options.add_choice({"io-backend", "", "how the drives are driven", ""},
                       {"auto", "io_uring", "libaio", "threads"}, settings.io_backend);
    options.add({"profile", "FILE",
                 "where `bench storage --tune` kept the drives' best settings, and --tune keeps "
                 "its own",
                 "$XDG_CACHE_HOME/spillway/profile.json"},
                settings.profile);
    options.add({"steps", "N", "timed, after one that is not", ""}, given.steps);
    options.add({.name = "tune",
                 .value_name = "TIME",
                 .help = "first search so long for faster chunks, windows, I/O and threads, keep "
                         "them in the profile for runs with that much --host-mem, and measure the "
                         "steps with them; 10s is usual",
                 .default_text = "none",
                 .set = [&given](const std::string& text) {
                     given.tune_s = parse_duration_s(text);
                     if (!(given.tune_s > 0))
                         throw std::invalid_argument("\"" + text + "\" must be above 0");
                 }});
    options.add({.name = "trace",
                 .value_name = "FILE",
                 .help = "what ran when, lane by lane, for Chrome or Perfetto",
                 .default_text = "nowhere",
                 .set = [&settings](const std::string& text) {
                     check_file_destination(text);
                     settings.trace = text;
                 }});
    add_json_option(options, settings.json);
}

/// Enough for all planes, staging and what is rounded up.
std::uint64_t ample_host_bytes(const TrainSettings& settings, std::uint64_t elements) {
    constexpr std::uint64_t most = std::uint64_t{1} << 44;
    constexpr std::uint64_t passing_bytes = std::uint64_t{96} << 20;
    return passing_bytes +
           static_cast<std::uint64_t>(static_cast<double>(std::min(elements, most)) *
                                      rest_bytes_per_parameter(settings));
}

/// What --tune needs, and what it finds itself.
void check_tuning(const Given& given, BenchProblems& problems) {
    if (given.tune_s == 0)
        return;
    if (given.settings.nvme.empty())
        problems.add("--tune searches on the drives of --nvme: name a folder");
    if (given.settings.tuning.chunk_bytes != 0)
        problems.add("--tune finds the best --chunk-size itself: leave it out");
    if (!given.settings.profile.empty())
        problems.collect("profile", [&] { check_profile_path(given.settings.profile); });
}

StepBenchOptions options_of(const Given& given, const OptionSet& flags) {
    const auto& settings = given.settings;
    BenchProblems problems;
    check_tuning(given, problems);
    StepBenchOptions options{
        .state = cpu_optim::parse_state_format(settings.state),
        .elements = given.elements,
        .host_bytes = given.host_bytes,
        .durability = settings.durable == "on" ? offload::Durability::on : offload::Durability::off,
        .chunk_bytes = settings.tuning.chunk_bytes,
        .threads = flags.given("threads") ? settings.threads : usable_processors(),
        .trace = settings.trace,
        .steps = given.steps};
    problems.check_threads(options.threads);
    for (auto& problem : trace_problems(settings))
        problems.add(std::move(problem));
    if (options.steps == 0)
        problems.add("--steps: 0 steps measure nothing: choose 1 or more");
    problems.collect("isa", [&] { options.isa = cpu_optim::parse_isa(settings.isa); });
    problems.collect("nvme", [&] {
        options.nvme = nvme_folders(settings.nvme);
        options.drive_io = choose_drive_io(settings);
    });
    if (!flags.given("host-mem"))
        options.host_bytes = options.nvme.empty() ? ample_host_bytes(settings, given.elements)
                                                  : host_bytes_beside_a_drive;
    problems.collect("momentum", [&] {
        options.hyper = one_hyper_group(settings, settings.lr);
        options.hyper.check(options.state);
    });
    problems.collect("elements",
                     [&] { problems.check_memory(given.elements, needed_bytes(options)); });
    problems.throw_if_any();
    return options;
}

void show(const StepBenchOptions& options, const StepBenchResult& result, Console& console) {
    console.line(fmt::format(
        "{}, {} elements, {} of {} of state in memory: {:.3f} s a step, predicted {:.3f}",
        options.hyper.optimizer_name(0), options.elements, human_bytes(result.resident_state_bytes),
        human_bytes(result.state_bytes), result.measured_s, result.predicted_s));
    console.line(
        fmt::format("bound {:.3f} s by {}: attained {:.3f} ({:.3f} to {:.3f} over {} "
                    "steps)",
                    result.bound_s, result.bound_by, result.attained, result.least_attained,
                    result.most_attained, options.steps));
    if (!options.nvme.empty())
        console.line(fmt::format(
            "{:.2f} bytes read and written a parameter ({}); drives {:.2f} GB/s read, {:.2f} "
            "written, {:.2f} both at once; waited {:.3f} s for reads and {:.3f} s for writes",
            result.nvme_bytes_per_parameter, result.io_backend, result.rates.nvme_read * 1e-9,
            result.rates.nvme_write * 1e-9, result.rates.nvme_mixed * 1e-9,
            result.stall_nvme_read_s, result.stall_nvme_write_s));
    console.line(fmt::format("verified {} elements: equal to the scalar reference in every bit",
                             result.verified_elements));
}

Json json_of(const Given& given, const StepBenchOptions& options, const StepBenchResult& result) {
    return {{"optimizer", given.settings.optimizer},
            {"state", given.settings.state},
            {"elements", options.elements},
            {"host_mem", options.host_bytes},
            {"nvme", given.settings.nvme},
            {"durable", given.settings.durable},
            {"threads", options.threads},
            {"isa", cpu_optim::isa_name(options.isa)},
            {"io_backend", result.io_backend},
            {"steps", options.steps},
            {"predicted_s", result.predicted_s},
            {"measured_s", result.measured_s},
            {"bound_s", result.bound_s},
            {"bound_by", result.bound_by},
            {"attained", result.attained},
            {"least_attained", result.least_attained},
            {"most_attained", result.most_attained},
            {"nvme_bytes_per_parameter", result.nvme_bytes_per_parameter},
            {"update_parameters_per_s", result.update_parameters_per_s},
            {"rates",
             {{"nvme_read", result.rates.nvme_read},
              {"nvme_write", result.rates.nvme_write},
              {"nvme_mixed", result.rates.nvme_mixed},
              {"dram", result.rates.dram}}},
            {"stall_s",
             {{"nvme_read", result.stall_nvme_read_s}, {"nvme_write", result.stall_nvme_write_s}}},
            {"state_bytes", result.state_bytes},
            {"resident_state_bytes", result.resident_state_bytes},
            {"host_bytes", result.host_bytes},
            {"verified_elements", result.verified_elements},
            {"notes", result.notes},
            {"interrupted", result.interrupted}};
}

/// By field: what differs from the defaults, 0 where nothing does.
Json found_json(const StoredTuning& tuning) {
    Json found{{"gain", tuning.gain}};
    for (const auto& field : tuning_fields)
        found[std::string(field.key)] = tuning.values.*field.member;
    return found;
}

}  // namespace

int run_bench_step(std::span<const std::string> arguments, Console& console) {
    Given given;
    OptionSet flags(
        "bench step",
        "Measures optimizer steps in the loop, state where a budget puts it, without a "
        "model; weights (2 bytes a parameter) and gradients come on top of --host-mem.");
    declare(flags, given);
    if (flags.parse(arguments) == OptionSet::Outcome::help_wanted) {
        console.result(flags.help());
        return as_int(ExitCode::done);
    }
    StepBenchOptions wanted = options_of(given, flags);
    const StopRequest stop;
    wanted.stop = [&] { return stop.requested(); };
    std::optional<StoredTuning> tuning;
    if (given.tune_s > 0)
        tuning = tune_step_bench(given.settings, given.tune_s, wanted, console);
    const StepBenchResult result = run_step_bench(wanted);
    if (!result.interrupted)
        show(wanted, result, console);
    for (const std::string& note : result.notes)
        console.line("note: " + note);
    if (!given.settings.json.empty()) {
        auto json = json_of(given, wanted, result);
        if (result.trace)
            json["trace"] = trace_json(*result.trace);
        if (tuning)
            json["tuning"] = found_json(*tuning);
        console.write_json(json.dump(2, ' ', false, Json::error_handler_t::replace),
                           given.settings.json);
    }
    if (!result.interrupted)
        return as_int(ExitCode::done);
    console.line("interrupted: nothing was measured");
    return as_int(ExitCode::interrupted);
}

}  // namespace spillway::engine
