// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/cli/option_set.h"
#include "engine/cli/output_place.h"
#include "engine/cli/verbs/bench.h"
#include "engine/cli/verbs/bench_adam_run.h"
#include "engine/cli/verbs/bench_problems.h"
#include "engine/compute/compute_pool.h"
#include "engine/measure/machine_memory.h"
#include "engine/settings/optimizer_choice.h"
#include "engine/train/stop_request.h"
#include "engine/train/train_report.h"

namespace spillway::engine {

namespace {

using Json = nlohmann::ordered_json;
using cpu_optim::GradientType;

/// As given, choices still texts.
struct Given {
    TrainSettings settings;  ///< of which the optimizer's part is used
    std::string gradient = "fp32";
    std::string weights = "fp32";
    std::uint64_t elements = std::uint64_t{64} << 20;
    std::uint32_t pairs = 9;
    std::string json;
};

void declare(OptionSet& options, Given& given) {
    auto& settings = given.settings;
    options.add_choice({"optimizer", "", "whose update is measured", ""},
                       measured_optimizer_names(), settings.optimizer);
    options.add_choice({"state", "", "format of the moments", ""}, {"fp32", "bf16", "int8"},
                       settings.state);
    options.add_choice({"weights", "", "fp32 masters, or bf16 and a 16-bit residue", ""},
                       {"fp32", "split"}, given.weights);
    options.add_choice({"grad", "", "format of the gradients", ""}, {"fp32", "bf16", "fp16"},
                       given.gradient);
    options.add({"elements", "N", "parameters, many more than the caches hold", ""},
                given.elements);
    options.add(
        {"momentum", "X", "of sgd, rmsprop and lars; 0: none, and no state for it but lars'", ""},
        settings.momentum);
    options.add({"threads", "N", "threads that compute", "every processor"}, settings.threads);
    options.add({"isa", "auto|scalar|avx2|avx512", "instruction set of the kernels", ""},
                settings.isa);
    options.add({"pairs", "N", "of a timed update and timed passes beside it", ""}, given.pairs);
    add_json_option(options, given.json);
}

GradientType gradient_type(const std::string& name) {
    if (name == "fp32")
        return GradientType::fp32;
    return name == "bf16" ? GradientType::bf16 : GradientType::fp16;
}

AdamBenchOptions options_of(const Given& given, bool threads_given) {
    const auto& settings = given.settings;
    BenchProblems problems;
    AdamBenchOptions options{
        .gradient = gradient_type(given.gradient),
        .state = cpu_optim::parse_state_format(settings.state),
        .weights = given.weights == "fp32" ? MasterForm::fp32 : MasterForm::split,
        .elements = given.elements,
        .threads = threads_given ? settings.threads : usable_processors(),
        .pairs = given.pairs};
    problems.check_threads(options.threads);
    if (options.pairs == 0)
        problems.add("--pairs: 0 pairs measure nothing: choose 1 or more");
    problems.collect("isa", [&] { options.isa = cpu_optim::parse_isa(settings.isa); });
    problems.collect("momentum", [&] {
        options.hyper = one_hyper_group(settings, settings.lr);
        options.hyper.check(options.state);
    });
    problems.collect("elements",
                     [&] { problems.check_memory(given.elements, needed_bytes(options)); });
    problems.throw_if_any();
    return options;
}

void show(const Given& given, const AdamBenchOptions& options, const AdamBenchResult& result,
          Console& console) {
    const auto needs = options.hyper.needs();
    console.line(fmt::format("{} on {}, {} thread{}: {:.3f} G parameters/s",
                             options.hyper.optimizer_name(0), cpu_optim::isa_name(options.isa),
                             options.threads, options.threads == 1 ? "" : "s",
                             result.parameters_per_s * 1e-9));
    console.line(
        fmt::format("{:.4g} bytes moved a parameter ({} gradient, {} weight, {} plane{} of "
                    "{} state{}): {:.2f} GB/s",
                    result.bytes_per_parameter, given.gradient, given.weights, needs.state_planes,
                    needs.state_planes == 1 ? "" : "s", given.settings.state,
                    needs.passes == 1 ? "" : ", two passes", result.bytes_per_s * 1e-9));
    console.line(
        fmt::format("x += 1 in place: {:.2f} GB/s; attained {:.3f} ({:.3f} to {:.3f} "
                    "over {} pairs)",
                    result.dram_bytes_per_s * 1e-9, result.attained, result.least_attained,
                    result.most_attained, options.pairs));
    console.line(fmt::format(
        "norm and non-finite scan of the gradient: {:.2f} GB/s; reading alone: "
        "{:.2f} GB/s; attained {:.3f}",
        result.scan_bytes_per_s * 1e-9, result.read_bytes_per_s * 1e-9, result.scan_attained));
    console.line(fmt::format("verified {} elements: equal to the scalar reference in every bit",
                             result.verified_elements));
}

Json json_of(const Given& given, const AdamBenchOptions& options, const AdamBenchResult& result) {
    return {{"optimizer", given.settings.optimizer},
            {"state", given.settings.state},
            {"weights", given.weights},
            {"grad", given.gradient},
            {"elements", options.elements},
            {"threads", options.threads},
            {"isa", cpu_optim::isa_name(options.isa)},
            {"pairs", options.pairs},
            {"huge_pages", result.huge_pages == nvme::HugePages::granted},
            {"parameters_per_s", result.parameters_per_s},
            {"update_s", result.update_s},
            {"bytes_per_parameter", result.bytes_per_parameter},
            {"bytes_per_s", result.bytes_per_s},
            {"dram_bytes_per_s", result.dram_bytes_per_s},
            {"attained", result.attained},
            {"least_attained", result.least_attained},
            {"most_attained", result.most_attained},
            {"scan_bytes_per_s", result.scan_bytes_per_s},
            {"read_bytes_per_s", result.read_bytes_per_s},
            {"scan_attained", result.scan_attained},
            {"verified_elements", result.verified_elements},
            {"notes", result.notes},
            {"interrupted", result.interrupted}};
}

}  // namespace

int run_bench_adam(std::span<const std::string> arguments, Console& console) {
    Given given;
    OptionSet options("bench adam",
                      "Measures an optimizer's update in memory against the memory's own rate.");
    declare(options, given);
    if (options.parse(arguments) == OptionSet::Outcome::help_wanted) {
        console.result(options.help());
        return as_int(ExitCode::done);
    }
    AdamBenchOptions wanted = options_of(given, options.given("threads"));
    const StopRequest stop;
    wanted.stop = [&] { return stop.requested(); };
    const AdamBenchResult result = run_adam_bench(wanted);
    if (!result.interrupted)
        show(given, wanted, result, console);
    for (const std::string& note : result.notes)
        console.line("note: " + note);
    if (!given.json.empty())
        console.write_json(
            json_of(given, wanted, result).dump(2, ' ', false, Json::error_handler_t::replace),
            given.json);
    if (!result.interrupted)
        return as_int(ExitCode::done);
    console.line("interrupted: nothing was measured");
    return as_int(ExitCode::interrupted);
}

}  // namespace spillway::engine
