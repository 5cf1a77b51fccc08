// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "cpu_optim/isa.h"
#include "cuda/device.h"
#include "engine/cli/option_set.h"
#include "engine/cli/output_place.h"
#include "engine/cli/units.h"
#include "engine/cli/usage_error.h"
#include "engine/cli/verbs/bench.h"
#include "engine/cli/verbs/bench_problems.h"
#include "engine/measure/drive_choice.h"
#include "engine/measure/machine_memory.h"
#include "engine/measure/probe.h"
#include "engine/settings/train_settings.h"

namespace spillway::engine {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Arguments = std::vector<std::string>;

struct Given {
    TrainSettings settings;  ///< of which drives, device, threads, kernels and profile are used
    std::uint64_t elements = std::uint64_t{32} << 20;
    std::uint64_t bytes = std::uint64_t{512} << 20;
    std::string host_mem;
    std::string time = "12s";
    std::string tune = "on";
};

void declare(OptionSet& options, Given& given) {
    auto& settings = given.settings;
    options.add({"nvme", "DIR[,DIR]", "folders on the drives of storage and step",
                 "none: storage is left out, and step is in memory"},
                settings.nvme);
    options.add(
        {"device", "cpu|cuda:N|sim:BYTES[@RATE]", "whose link is measured, if it has one", "cpu"},
        settings.device);
    options.add({"elements", "N", "parameters of adam and step", ""}, given.elements);
    options.add_bytes(
        {"size", "BYTES", "of storage's files and of the memory gone over; half of it for link",
         "512MiB"},
        given.bytes);
    options.add({"host-mem", "BYTES", "of step", "as bench step has it"}, given.host_mem);
    options.add({"threads", "N", "threads that compute", "every processor"}, settings.threads);
    options.add({"isa", "auto|scalar|avx2|avx512", "instruction set of the kernels", ""},
                settings.isa);
    options.add({"time", "TIME", "for storage; a search of step's takes as long, 10s at most", ""},
                given.time);
    options.add_choice({"tune", "", "whether storage and step search for faster settings", ""},
                       {"on", "off"}, given.tune);
    options.add({"profile", "FILE", "where what is found is kept for plan and train",
                 "$XDG_CACHE_HOME/spillway/profile.json"},
                settings.profile);
    add_json_option(options, settings.json);
}

/// What the single benches would refuse by names that this one does not have.
void check(const Given& given) {
    const auto& settings = given.settings;
    BenchProblems problems;
    problems.check_threads(settings.threads);
    problems.collect("isa", [&] { static_cast<void>(cpu_optim::parse_isa(settings.isa)); });
    problems.collect("nvme", [&] {
        for (const auto& folder : nvme_folders(settings.nvme))
            static_cast<void>(file_system_identity(folder));
    });
    problems.collect("time", [&] { static_cast<void>(parse_duration_s(given.time)); });
    if (!settings.profile.empty())
        problems.collect("profile", [&] { check_profile_path(settings.profile); });
    problems.throw_if_any();
}

struct Stage {
    const char* name;
    std::function<int(std::span<const std::string>, Console&)> run;
    Arguments arguments;
};

void add(Arguments& arguments, const char* option, const std::string& value) {
    if (!value.empty())
        arguments.insert(arguments.end(), {std::string("--") + option, value});
}

Stage storage_stage(const Given& given) {
    Stage stage{"storage", run_bench_storage, {}};
    add(stage.arguments, "dir", given.settings.nvme);
    add(stage.arguments, "size", fmt::format("{}", given.bytes));
    add(stage.arguments, "time", given.time);
    if (given.tune == "on") {
        stage.arguments.emplace_back("--tune");
        add(stage.arguments, "profile", given.settings.profile.string());
    }
    return stage;
}

Stage step_stage(const Given& given, const Arguments& common) {
    constexpr double most_tuning_s = 10;
    Stage stage{"step", run_bench_step, common};
    add(stage.arguments, "elements", fmt::format("{}", given.elements));
    add(stage.arguments, "nvme", given.settings.nvme);
    add(stage.arguments, "host-mem", given.host_mem);
    add(stage.arguments, "profile", given.settings.profile.string());
    if (given.tune == "on" && !given.settings.nvme.empty())
        add(stage.arguments, "tune",
            fmt::format("{}s", std::min(parse_duration_s(given.time), most_tuning_s)));
    return stage;
}

std::vector<Stage> stages_of(const Given& given, const cuda::Device& device) {
    Arguments common;
    add(common, "threads", fmt::format("{}", given.settings.threads));
    Stage memory{"memory", run_bench_memory, common};
    add(memory.arguments, "size", fmt::format("{}", given.bytes));
    add(common, "isa", given.settings.isa);
    Stage adam{"adam", run_bench_adam, common};
    add(adam.arguments, "elements", fmt::format("{}", given.elements));
    std::vector<Stage> stages;
    if (!given.settings.nvme.empty())
        stages.push_back(storage_stage(given));
    stages.push_back(std::move(memory));
    if (device.memory_kind() == cuda::MemoryKind::device)
        stages.push_back({"link",
                          run_bench_link,
                          {"--device", given.settings.device, "--size",
                           fmt::format("{}", given.bytes / 2)}});  // as bench link by itself
    stages.push_back(std::move(adam));
    stages.push_back(step_stage(given, common));
    return stages;
}

/// Where a stage leaves its results; removed at the end.
class PassingFile {
  public:
    PassingFile() = default;
    ~PassingFile() {
        std::error_code ignored;
        fs::remove(path_, ignored);
    }
    PassingFile(const PassingFile&) = delete;
    PassingFile& operator=(const PassingFile&) = delete;

    [[nodiscard]] const fs::path& path() const noexcept { return path_; }

  private:
    fs::path path_ = fs::temp_directory_path() / fmt::format("spillway.bench-all.{}", ::getpid());
};

/// Its results; the exit code says whether they are whole.
std::pair<Json, int> run_stage(const Stage& stage, Console& console) {
    console.line(fmt::format("== {}", stage.name));
    const PassingFile results;
    auto arguments = stage.arguments;
    arguments.insert(arguments.end(), {"--json", results.path().string()});
    try {
        const int code = stage.run(arguments, console);
        std::ifstream file(results.path());
        return {Json::parse(file), code};
    } catch (const UsageError& error) {
        std::vector<std::string> problems;
        for (const auto& problem : error.problems())
            problems.push_back(fmt::format("bench {}: {}", stage.name, problem));
        throw UsageError(problems);
    }
}

/// What plan and train want of the machine, measured as they would, and kept for them.
Json make_profile(const Given& given, cuda::Device& device, Console& console) {
    console.line("== profile");
    const auto& settings = given.settings;
    const auto path = profile_path(settings);
    const auto profile =
        recall_or_probe({.nvme_folders = nvme_folders(settings.nvme),
                         .threads = settings.threads,
                         .isa = cpu_optim::parse_isa(settings.isa),
                         .device = device,
                         .drive_io = choose_drive_io(settings),
                         .memory_bytes = std::max<std::size_t>(given.bytes, std::size_t{4} << 20)},
                        path, 0);
    for (const auto& note : profile.notes)
        console.line("note: " + note);
    console.line(path.empty() ? std::string("not kept: there is no home for a profile")
                              : fmt::format("kept in {}", path.string()));
    Json json{{"file", nullptr},
              {"dram_bytes_per_s", profile.dram_bytes_per_s},
              {"to_device_bytes_per_s", profile.to_device_bytes_per_s},
              {"to_host_bytes_per_s", profile.to_host_bytes_per_s},
              {"drive", nullptr}};
    if (!path.empty())
        json["file"] = path.string();
    if (profile.drive)
        json["drive"] = {{"read_bytes_per_s", profile.drive->read_bytes_per_s},
                         {"write_bytes_per_s", profile.drive->write_bytes_per_s},
                         {"mixed_bytes_per_s", profile.drive->mixed_bytes_per_s}};
    return json;
}

std::unique_ptr<cuda::Device> open_device(const std::string& name) {
    constexpr std::size_t probed_bytes = std::size_t{64} << 20;  // of a GPU that others may use
    try {
        return cuda::make_device(name, probed_bytes);
    } catch (const std::invalid_argument& error) {
        throw UsageError(fmt::format("--device: {}", error.what()));
    }
}

}  // namespace

int run_bench_all(std::span<const std::string> arguments, Console& console) {
    Given given;
    given.settings.threads = static_cast<std::uint32_t>(usable_processors());
    OptionSet options("bench all",
                      "Measures storage, memory, link, adam and step in turn, in about a minute, "
                      "and keeps what plan and train want to know of the machine.");
    declare(options, given);
    if (options.parse(arguments) == OptionSet::Outcome::help_wanted) {
        console.result(options.help());
        return as_int(ExitCode::done);
    }
    check(given);
    const auto device = open_device(given.settings.device);
    Json root;
    int code = as_int(ExitCode::done);
    for (const auto& stage : stages_of(given, *device)) {
        std::tie(root[stage.name], code) = run_stage(stage, console);
        if (code != as_int(ExitCode::done))
            break;
    }
    if (code == as_int(ExitCode::done))
        root["profile"] = make_profile(given, *device, console);
    root["interrupted"] = code != as_int(ExitCode::done);
    if (!given.settings.json.empty())
        console.write_json(root.dump(2), given.settings.json);
    return code;
}

}  // namespace spillway::engine
