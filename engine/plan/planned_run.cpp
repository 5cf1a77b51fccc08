// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/plan/planned_run.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "cpu_optim/isa.h"
#include "cuda/device_spec.h"
#include "engine/cli/usage_error.h"
#include "engine/compute/compute_pool.h"
#include "engine/train/trace_place.h"
#include "engine/train/train_report.h"
#include "offload/disk_room.h"

namespace spillway::engine {
namespace {

namespace fs = std::filesystem;

/// Memory of a device that is simulated comes from this machine, outside --host-mem.
std::size_t simulated_bytes(const TrainSettings& settings) {
    std::size_t bytes = 0;
    for (const auto& device : device_list(settings.device))
        bytes += cuda::parse_device_spec(device).capacity_bytes;
    return bytes;
}

/// Of the first device, which those beside it are like.
cuda::DeviceSpec first_device(const TrainSettings& settings) {
    return cuda::parse_device_spec(device_list(settings.device).front());
}

std::string identity_of(const Gpus& gpus) {
    std::string all;
    for (const auto& gpu : gpus)
        all += (all.empty() ? "" : ", ") + gpu->identity();
    return all;
}

/// What each device has for a run: of GPUs that of the smallest; `host_bytes` where it computes in
/// host memory.
std::size_t device_budget(const TrainSettings& settings, const Gpus& gpus, std::size_t host_bytes) {
    const auto capacity = [](const auto& gpu) { return gpu->capacity_bytes(); };
    if (!gpus.empty())
        return capacity(*std::ranges::min_element(gpus, {}, capacity));
    const auto spec = first_device(settings);
    return spec.kind == cuda::DeviceSpec::Kind::sim ? spec.capacity_bytes : host_bytes;
}

MemoryBudgets make_budgets(const TrainSettings& settings, const Gpus& gpus,
                           const AvailableMemory& available, Console& console) {
    const auto simulated = simulated_bytes(settings);
    const bool on_host = first_device(settings).kind == cuda::DeviceSpec::Kind::cpu;
    MemoryBudgets budgets;
    budgets.ranks = static_cast<unsigned>(device_list(settings.device).size());
    budgets.device_kind = on_host ? cuda::MemoryKind::host : cuda::MemoryKind::device;
    budgets.host_bytes = settings.host_mem;
    if (settings.host_mem == 0) {
        const auto margin = memory_margin(available.bytes) + simulated;
        if (available.bytes <= margin)
            throw offload::PlanRefused(
                "host memory", margin + 1, available.bytes,
                fmt::format(
                    "{} leaves less than the {} that are kept back when no budget is given: "
                    "free some, raise the limit, or say --host-mem",
                    available.limited_by, human_bytes(margin)));
        budgets.host_bytes = available.bytes - margin;
        console.line(fmt::format("host memory: {} ({} free by {}, {} kept back)",
                                 human_bytes(budgets.host_bytes), human_bytes(available.bytes),
                                 available.limited_by, human_bytes(margin)));
    }
    budgets.device_bytes = device_budget(settings, gpus, budgets.host_bytes);
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

}  // namespace

std::vector<std::string> problems_here(const TrainSettings& settings, SettingsUse use) {
    auto problems = problems_of(settings, use);
    for (const auto& folder : nvme_folders(settings.nvme)) {
        if (!fs::is_directory(folder))
            problems.push_back(
                fmt::format("--nvme {}: is no folder; name an existing one on the drive to use",
                            folder.string()));
    }
    for (const auto& file : settings.data) {
        if (!fs::is_regular_file(file))
            problems.push_back(fmt::format("--data {}: is no file that can be read", file));
    }
    const auto of_trace = trace_problems(settings);
    problems.insert(problems.end(), of_trace.begin(), of_trace.end());
    return problems;
}

void resolve_choices(TrainSettings& settings) {
    if (settings.schedule_steps == 0)
        settings.schedule_steps = settings.steps;
    if (settings.schedule_steps > 0 && settings.warmup > settings.schedule_steps)
        throw UsageError(fmt::format("--warmup {} is longer than the schedule of {} updates",
                                     settings.warmup, settings.schedule_steps));
    settings.seq = settings.sequence_tokens();
    if (settings.nvme == no_nvme)
        settings.nvme.clear();
    if (settings.threads == 0)
        settings.threads = static_cast<std::uint32_t>(std::min(usable_processors(), most_threads));
    settings.isa = cpu_optim::isa_name(cpu_optim::parse_isa(settings.isa));
}

Gpus open_gpus(const TrainSettings& settings) {
    Gpus gpus;
    if (first_device(settings).kind != cuda::DeviceSpec::Kind::cuda)
        return gpus;
    try {
        for (const auto& device : device_list(settings.device))
            gpus.push_back(cuda::make_device(device, settings.device_mem));
    } catch (const std::invalid_argument& refused) {
        throw UsageError(std::string("--device: ") + refused.what());
    }
    return gpus;
}

PlannedRun fit_run(TrainSettings settings, const Gpus& gpus, const AvailableMemory& available,
                   Console& console) {
    auto layout = make_layout(settings);
    const auto budgets = make_budgets(settings, gpus, available, console);
    auto device = gpus.empty() ? settings.device : identity_of(gpus);
    const auto found = recall_tuning(settings, tuning_key(settings, device, budgets.host_bytes));
    auto tuned = plan_with_tuning(layout, std::move(settings), budgets, found);
    require_memory(tuned.plan, budgets, tuned.settings, available);
    return {.settings = std::move(tuned.settings),
            .layout = std::move(layout),
            .budgets = budgets,
            .plan = std::move(tuned.plan),
            .device = std::move(device),
            .tuning = std::move(tuned.tuning)};
}

fs::path drive_folder(const TrainSettings& settings) {
    auto folder = !settings.nvme.empty()  ? fs::absolute(nvme_folders(settings.nvme).front())
                  : !settings.out.empty() ? fs::absolute(settings.out)
                                          : fs::current_path();
    while (!fs::exists(folder))
        folder = folder.parent_path();
    return folder;
}

void require_disk(const TrainPlan& plan, const TrainSettings& settings) {
    auto folders = nvme_folders(settings.nvme);
    if (folders.empty())
        folders.push_back(drive_folder(settings));
    offload::require_disk_room(folders, plan.offload.disk_bytes);
}

}  // namespace spillway::engine
