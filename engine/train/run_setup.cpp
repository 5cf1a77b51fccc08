// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/train/run_setup.h"

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cpu_optim/isa.h"
#include "cuda/device_spec.h"
#include "engine/cli/usage_error.h"
#include "engine/train/calibration.h"
#include "engine/train/machine_memory.h"
#include "engine/train/metrics_log.h"
#include "engine/train/optimizer_choice.h"
#include "engine/train/probe.h"
#include "engine/train/profile.h"
#include "engine/train/train_report.h"

namespace spillway::engine {
namespace {

namespace fs = std::filesystem;

/// The folder of a run to go on with; none to start a new one.
std::optional<offload::StateFolder> open_former_run(const TrainSettings& settings) {
    if (settings.out.empty())
        return std::nullopt;
    if (settings.resume)
        return offload::StateFolder::holds_run(settings.out)
                   ? std::optional(
                         offload::StateFolder::open(settings.out, offload::LockMode::exclusive))
                   : std::nullopt;
    if (fs::exists(settings.out) && !fs::is_directory(settings.out))
        throw UsageError(fmt::format("--out {}: is a file; name a folder", settings.out.string()));
    if (fs::exists(settings.out) && !fs::is_empty(settings.out))
        throw UsageError(fmt::format(
            "--out {}: the folder is not empty; give --resume to go on with the run in it, or name "
            "another folder",
            settings.out.string()));
    return std::nullopt;
}

/// The --nvme folder of a run, "" if its extents lie in its own folder.
std::string nvme_of(const offload::Manifest& manifest) {
    const auto above = manifest.extents_folder.parent_path();
    return above.filename() == offload::StateFolder::extents_name ? above.parent_path().string()
                                                                  : "";
}

void adopt_nvme(TrainSettings& settings, const offload::Manifest& manifest,
                const GivenSettings& given, std::vector<std::string>& problems) {
    const auto recorded = nvme_of(manifest);
    std::error_code ignored;
    if (given("nvme") && settings.nvme != recorded &&
        (recorded.empty() || !fs::equivalent(settings.nvme, recorded, ignored)))
        problems.push_back(fmt::format(
            "--nvme {}: the run's state lies in {}; moving it is not available in this version, "
            "leave the option out",
            settings.nvme, manifest.extents_folder.string()));
    settings.nvme = recorded;
}

void require_sound(const TrainSettings& settings, std::vector<std::string> problems) {
    const auto more = problems_of(settings);
    problems.insert(problems.end(), more.begin(), more.end());
    if (!settings.nvme.empty() && !fs::is_directory(settings.nvme))
        problems.push_back(fmt::format(
            "--nvme {}: is no folder; name an existing one on the drive to use", settings.nvme));
    for (const auto& file : settings.data) {
        if (!fs::is_regular_file(file))
            problems.push_back(fmt::format("--data {}: is no file that can be read", file));
    }
    if (!problems.empty())
        throw UsageError(std::move(problems));
}

/// A longer run keeps the schedule it began with (P1); one that has fallen to 0 teaches nothing
/// more.
void warn_of_ended_schedule(const TrainSettings& settings, Console& console) {
    if (settings.steps > settings.schedule_steps && settings.schedule != "constant" &&
        settings.min_lr == 0)
        console.warning(fmt::format(
            "the run's schedule ends at update {} with a learning rate of 0: steps from there to "
            "{} change nothing; a run that may grow wants --min-lr or --schedule-steps",
            settings.schedule_steps, settings.steps));
}

/// What was left to be chosen and does not depend on memory.
void resolve_choices(TrainSettings& settings) {
    if (settings.schedule_steps == 0)
        settings.schedule_steps = settings.steps;
    if (settings.schedule_steps > 0 && settings.warmup > settings.schedule_steps)
        throw UsageError(fmt::format("--warmup {} is longer than the schedule of {} updates",
                                     settings.warmup, settings.schedule_steps));
    settings.seq = settings.sequence_tokens();
    if (settings.threads == 0)
        settings.threads = static_cast<std::uint32_t>(usable_processors());
    settings.isa = cpu_optim::isa_name(cpu_optim::parse_isa(settings.isa));
}

std::unique_ptr<ByteCorpus> open_corpus(const TrainSettings& settings) {
    try {
        return std::make_unique<ByteCorpus>(
            std::vector<fs::path>(settings.data.begin(), settings.data.end()),
            settings.sequence_tokens());
    } catch (const std::invalid_argument& error) {
        throw UsageError(std::string("--data: ") + error.what());
    }
}

std::optional<ProgressReplay> open_replay(const TrainSettings& settings) {
    if (settings.replay_progress.empty())
        return std::nullopt;
    try {
        return ProgressReplay(settings.replay_progress);
    } catch (const std::runtime_error& error) {
        throw UsageError(std::string("--replay-progress: ") + error.what());
    }
}

/// Memory of a device that is simulated comes from this machine, outside --host-mem.
std::size_t simulated_bytes(const TrainSettings& settings) {
    return cuda::parse_device_spec(settings.device).capacity_bytes;
}

MemoryBudgets make_budgets(const TrainSettings& settings, const AvailableMemory& available,
                           Console& console) {
    const auto simulated = simulated_bytes(settings);
    MemoryBudgets budgets;
    budgets.device_kind = simulated == 0 ? cuda::MemoryKind::host : cuda::MemoryKind::device;
    budgets.host_bytes = settings.host_mem;
    if (settings.host_mem == 0) {
        const auto margin = memory_margin(available.bytes) + simulated;
        budgets.host_bytes = available.bytes - std::min(available.bytes, margin);
        console.line(fmt::format("host memory: {} ({} free by {}, {} kept back)",
                                 human_bytes(budgets.host_bytes), human_bytes(available.bytes),
                                 available.limited_by, human_bytes(margin)));
    }
    budgets.device_bytes = simulated == 0 ? budgets.host_bytes : simulated;
    if (settings.device_mem > 0)
        budgets.device_bytes = std::min<std::size_t>(budgets.device_bytes, settings.device_mem);
    return budgets;
}

void require_memory(const TrainPlan& plan, const MemoryBudgets& budgets,
                    const TrainSettings& settings, const AvailableMemory& available) {
    const auto needed = plan.host_bytes(budgets.device_kind) + simulated_bytes(settings);
    if (needed > available.bytes)
        throw offload::PlanRefused(
            "host memory", needed, available.bytes,
            fmt::format("that is what {} has free: lower --host-mem", available.limited_by));
}

void require_disk(const TrainPlan& plan, const TrainSettings& settings) {
    auto folder = fs::absolute(settings.nvme.empty() ? settings.out : fs::path(settings.nvme));
    while (!fs::exists(folder))
        folder = folder.parent_path();
    const auto available = fs::space(folder).available;
    if (plan.offload.disk_bytes > available)
        throw offload::PlanRefused("disk " + folder.string(), plan.offload.disk_bytes, available,
                                   "free some of it, name another folder, or take a smaller model");
}

void make_machine(RunSetup& setup) {
    const auto& settings = setup.settings;
    setup.device = cuda::make_device(settings.device, setup.budgets.device_bytes);
    setup.compute = setup.device->create_stream("compute");
    setup.pool =
        std::make_unique<ComputePool>(settings.threads, cpu_optim::parse_isa(settings.isa));
    warm_up(*setup.device, *setup.compute, *setup.pool);
    setup.overhead_bytes = resident_memory().now_bytes;
}

/// The machine's rates: remembered for a day, else measured.
MachineProfile find_profile_of(const RunSetup& setup, Console& console) {
    constexpr double max_age_s = 24 * 3600;
    const auto& settings = setup.settings;
    // Never more than the run itself is about to take.
    constexpr std::size_t least = std::size_t{4} << 20;
    constexpr std::size_t most = std::size_t{32} << 20;
    const auto path = settings.profile.empty() ? default_profile_path() : settings.profile;
    const auto profile = recall_or_probe(
        {.nvme_folder = settings.nvme,
         .threads = settings.threads,
         .isa = cpu_optim::parse_isa(settings.isa),
         .device = *setup.device,
         .backend = io_backend_kind(settings),
         .memory_bytes = std::clamp(setup.plan.host_bytes(setup.budgets.device_kind), least, most)},
        path, max_age_s);
    for (const auto& note : profile.notes)
        console.line("profile: " + note);
    return profile;
}

/// The profile's update rate is AdamW's over split masters. Updates are bound by memory, so another
/// optimizer takes time by its bytes: what rests, and a gradient.
double share_of_adamw(std::size_t rest_bytes) {
    constexpr double adamw_bytes = 12 + 4;
    return (static_cast<double>(rest_bytes) + 4) / adamw_bytes;
}

StepBound find_bound(const RunSetup& setup, Console& console) {
    const auto& plan = setup.plan.offload;
    const auto parameters = setup.layout.order.parameters();
    const auto rest_bytes = rest_bytes_per_parameter(setup.settings);
    const auto profile = find_profile_of(setup, console);
    const auto drive = profile.drive.value_or(DriveRates{});
    StepDemand demand{.nvme_read_bytes = plan.nvme_read_bytes_per_step,
                      .nvme_written_bytes = plan.nvme_written_bytes_per_step};
    if (setup.budgets.device_kind == cuda::MemoryKind::device) {
        demand.to_device_bytes = plan.to_device_bytes_per_step;
        demand.to_host_bytes = plan.to_host_bytes_per_step;
    }
    demand.dram_bytes = dram_bytes_per_step(parameters, rest_bytes, demand);
    demand.cpu_s = calibrate_pass_s(*setup.device, *setup.compute, *setup.pool, setup.layout.config,
                                    setup.plan.shape);
    if (profile.update_parameters_per_s > 0)
        demand.cpu_s += static_cast<double>(parameters) / profile.update_parameters_per_s *
                        share_of_adamw(rest_bytes);
    const auto bound = step_bound({.nvme_read = drive.read_bytes_per_s,
                                   .nvme_write = drive.write_bytes_per_s,
                                   .nvme_mixed = drive.mixed_bytes_per_s,
                                   .to_device = profile.to_device_bytes_per_s,
                                   .to_host = profile.to_host_bytes_per_s,
                                   .dram = profile.dram_bytes_per_s},
                                  demand);
    console.line(fmt::format("bound: {:.3f} s a step, set by the {}", bound.seconds, bound.by));
    return bound;
}

/// A new run's folder, where a dead one may have left something of the program's own.
offload::StateFolder create_folder(const RunSetup& setup, const std::string& fingerprint) {
    const auto& settings = setup.settings;
    if (settings.resume && fs::exists(settings.out)) {
        offload::StateFolder::start_over(settings.out, settings.nvme);
        fs::remove(settings.out / MetricsLog::file_name);
    }
    const auto tensors = setup.layout.order.tensors();
    return offload::StateFolder::create(
        settings.out, settings.nvme, {tensors.begin(), tensors.end()}, settings.durable,
        make_run_record(settings, fingerprint), planes_of(settings));
}

}  // namespace

RunSetup prepare_run(TrainSettings settings, const GivenSettings& given, Console& console) {
    auto folder = open_former_run(settings);
    std::vector<std::string> problems;
    if (folder) {
        problems = adopt_run_record(settings, folder->manifest().client_settings, given);
        adopt_nvme(settings, folder->manifest(), given, problems);
    }
    require_sound(settings, std::move(problems));
    resolve_choices(settings);
    warn_of_ended_schedule(settings, console);
    auto corpus = open_corpus(settings);
    const auto fingerprint = corpus->fingerprint();
    if (folder) {
        if (const auto problem = data_problem(folder->manifest().client_settings, fingerprint);
            !problem.empty())
            throw UsageError(problem);
    }
    auto replay = open_replay(settings);
    auto layout = make_layout(settings);
    const auto available = available_memory();
    const auto budgets = make_budgets(settings, available, console);
    auto plan = plan_training(
        layout, settings, settings.threads, budgets,
        settings.nvme.empty() ? offload::NvmeTier::absent : offload::NvmeTier::present);
    require_memory(plan, budgets, settings, available);
    if (!folder)
        require_disk(plan, settings);
    for (const auto& line : train_plan_lines(plan, budgets))
        console.line(line);
    RunSetup setup{.settings = std::move(settings),
                   .layout = std::move(layout),
                   .corpus = std::move(corpus),
                   .replay = std::move(replay),
                   .budgets = budgets,
                   .plan = std::move(plan),
                   .device = {},
                   .compute = {},
                   .pool = {},
                   .bound = {},
                   .folder = {}};
    make_machine(setup);
    if (setup.settings.probe == "on")
        setup.bound = find_bound(setup, console);
    setup.folder = folder ? std::move(folder) : create_folder(setup, fingerprint);
    return setup;
}

}  // namespace spillway::engine
