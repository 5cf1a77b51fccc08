// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/plan/step_costs.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "cpu_optim/isa.h"
#include "cuda/cpu_device.h"
#include "engine/measure/calibration.h"
#include "engine/measure/drive_choice.h"
#include "engine/measure/probe.h"
#include "engine/measure/profile.h"
#include "engine/plan/input_placement.h"
#include "engine/settings/optimizer_choice.h"

namespace spillway::engine {
namespace {

/// As much memory as the run goes over, so that a cache helps as much, or as little. Never more
/// than it is about to take.
std::size_t probed_bytes(const PlannedRun& run) {
    constexpr std::size_t least = std::size_t{4} << 20;
    constexpr std::size_t most = std::size_t{512} << 20;
    return std::clamp(run.plan.host_bytes(run.budgets.device_kind), least, most);
}

/// Enough that no second-level cache holds it.
std::size_t shared_bytes(const PlannedRun& run) {
    constexpr std::size_t most = std::size_t{64} << 20;
    constexpr std::size_t least = std::size_t{2} << 20;
    // The passes beside it hold what they take of a device in the same memory.
    const auto kind = run.budgets.device_kind;
    const auto host_bytes = run.plan.host_bytes(kind);
    const auto taken = kind == cuda::MemoryKind::host ? run.plan.device_bytes() : 0;
    return std::clamp(std::min(probed_bytes(run) / 2, host_bytes - std::min(host_bytes, taken)),
                      least, most);
}

/// Remembered for a day, else measured.
MachineProfile find_profile_of(const PlannedRun& run, const RunMachine& machine, Console& console) {
    constexpr double max_age_s = 24 * 3600;
    const auto& settings = run.settings;
    const auto profile = recall_or_probe({.nvme_folders = nvme_folders(settings.nvme),
                                          .threads = settings.threads,
                                          .isa = cpu_optim::parse_isa(settings.isa),
                                          .device = *machine.device,
                                          .drive_io = choose_drive_io(settings),
                                          .memory_bytes = probed_bytes(run)},
                                         profile_path(settings), max_age_s);
    for (const auto& note : profile.notes)
        console.line("profile: " + note);
    return profile;
}

/// A rate of 0 is not known, and what is not known does not count.
double seconds_at(double bytes, double rate) noexcept {
    return rate > 0 ? bytes / rate : 0;
}

/// What the processor does with weights and gradients on their way, beside the link. Both go
/// through memory at its rate: those threads compete with the passes for the processor, and what
/// one of them takes slows all down by as much as it would take all to do it.
void add_handling(const PlannedRun& run, const MachineSpeed& speed, StepCosts& costs) {
    const auto& plan = run.plan.offload;
    const bool own_memory = run.budgets.device_kind == cuda::MemoryKind::device;
    const auto fetched = static_cast<double>(plan.to_device_bytes_per_step);
    const auto gradients = static_cast<double>(plan.to_host_bytes_per_step);
    // A weight's two halves are read and its fp32 value is written, where a line is read before
    // that. On a simulated device, after they were copied there; a GPU does both itself.
    const double joined = speed.passes_by == PassesBy::gpu ? 0 : own_memory ? 5 : 3;
    // Gradients are copied (read, and written to a line that is read before), then scanned; a GPU's
    // link writes them.
    const double taken = speed.passes_by == PassesBy::gpu ? 1 : 4;
    costs.weights_s =
        seconds_at(joined * fetched, speed.rates.dram) +
        seconds_at(static_cast<double>(costs.weight_read_bytes), speed.update.checksum_bytes_per_s);
    costs.gradients_s = seconds_at(taken * gradients, speed.rates.dram);
    // Each way copied, to a line that is read before, by the processor; or by a GPU's link.
    const double copied = speed.passes_by == PassesBy::gpu ? 0 : 2 * 3;
    costs.inputs_s =
        seconds_at(copied * static_cast<double>(run.plan.moved_input_bytes()), speed.rates.dram) +
        seconds_at(2 * static_cast<double>(costs.input_bytes), speed.update.checksum_bytes_per_s);
    costs.checksums_s =
        seconds_at(static_cast<double>(costs.update_read_bytes + costs.update_written_bytes +
                                       2 * costs.gradient_bytes),
                   speed.update.checksum_bytes_per_s);
}

}  // namespace

RunMachine make_run_machine(const TrainSettings& settings, const MemoryBudgets& budgets,
                            Gpus gpus) {
    RunMachine machine;
    const auto specs = device_list(settings.device);
    for (std::size_t rank = 0; rank < specs.size(); ++rank) {
        auto device = gpus.empty() ? cuda::make_device(specs[rank], budgets.device_bytes)
                                   : std::move(gpus[rank]);
        auto compute = device->create_stream("compute");
        if (rank == 0) {
            machine.device = std::move(device);
            machine.compute = std::move(compute);
        } else {
            machine.more_devices.push_back(std::move(device));
            machine.more_compute.push_back(std::move(compute));
        }
    }
    if (specs.size() > 1) {
        machine.host = machine.compute->kernels() != nullptr
                           ? cuda::make_page_locked_host(budgets.host_bytes, *machine.device)
                           : cuda::make_device("cpu", budgets.host_bytes);
        machine.host_compute = machine.host->create_stream("units");
    }
    machine.pool =
        std::make_unique<ComputePool>(settings.threads, cpu_optim::parse_isa(settings.isa));
    warm_up(*machine.device, *machine.compute, *machine.pool);
    return machine;
}

std::vector<std::string> connect_devices(const RunMachine& machine) {
    std::vector<std::string> notes;
    const auto members = machine.members();
    for (const auto& one : members)
        for (const auto& other : members)
            if (&one != &other &&
                one.device.reach(other.device) == cuda::Device::PeerPath::through_host)
                notes.push_back(fmt::format(
                    "{} does not reach the memory of {}: copies from it go through host memory",
                    one.device.name(), other.device.name()));
    return notes;
}

std::vector<offload::GroupMember> RunMachine::members() const {
    std::vector<offload::GroupMember> all{{*device, *compute}};
    for (std::size_t i = 0; i < more_devices.size(); ++i)
        all.push_back({*more_devices[i], *more_compute[i]});
    return all;
}

std::string RunMachine::device_names() const {
    std::string names;
    for (const auto& member : members())
        names += (names.empty() ? "" : ",") + member.device.name();
    return names;
}

cuda::DeviceStatistics RunMachine::device_statistics() const {
    cuda::DeviceStatistics sum;
    for (const auto& member : members()) {
        const auto own = member.device.statistics();
        if (member.device.memory_kind() != cuda::MemoryKind::host) {  // else there is no link
            sum.to_device_bytes += own.to_device_bytes;
            sum.to_host_bytes += own.to_host_bytes;
        }
        sum.to_device_busy_s += own.to_device_busy_s;
        sum.to_host_busy_s += own.to_host_busy_s;
        sum.kernel_busy_s += own.kernel_busy_s;
        sum.peak_bytes = std::max(sum.peak_bytes, own.peak_bytes);
    }
    return sum;
}

MachineSpeed measure_speed(const PlannedRun& run, const RunMachine& machine, Console& console) {
    const auto profile = find_profile_of(run, machine, console);
    const auto drive = profile.drive.value_or(DriveRates{});
    const auto weights_bytes = run.plan.device_bytes() - run.plan.activation_bytes;
    MachineSpeed speed{
        .passes_by = machine.compute->kernels() != nullptr ? PassesBy::gpu : PassesBy::cpu,
        .rates = {.nvme_read = drive.read_bytes_per_s,
                  .nvme_write = drive.write_bytes_per_s,
                  .nvme_mixed = drive.mixed_bytes_per_s,
                  .to_device = profile.to_device_bytes_per_s * run.budgets.ranks,
                  .to_host = profile.to_host_bytes_per_s * run.budgets.ranks,
                  .dram = profile.dram_bytes_per_s},
        .update = calibrate_update(run.settings, run.layout.order.parameters(), probed_bytes(run)),
        .pass = calibrate_pass(*machine.device, *machine.compute, *machine.pool, run.layout.config,
                               run.plan.shape, weights_bytes),
        .pass_tokens = tokens_per_step(run.settings) / run.budgets.ranks};
    if (speed.passes_by == PassesBy::cpu)
        speed.sharing =
            calibrate_sharing(*machine.device, *machine.compute, *machine.pool, run.layout.config,
                              run.plan.shape, weights_bytes, shared_bytes(run));
    return speed;
}

StepDemand StepCosts::demand() const noexcept {
    const double pass_s = pass.forward_s + pass.backward_s;
    return {.nvme_read_bytes = update_read_bytes + weight_read_bytes + gradient_bytes + input_bytes,
            .nvme_written_bytes = update_written_bytes + gradient_bytes + input_bytes,
            .to_device_bytes = to_device_bytes,
            .to_host_bytes = to_host_bytes,
            .dram_bytes = dram_bytes,
            .cpu_s = update_s + (passes_by == PassesBy::cpu ? pass_s : 0),
            .gpu_s = passes_by == PassesBy::gpu ? pass_s : 0};
}

StepCosts step_costs(const MachineSpeed& speed, const PlannedRun& run) {
    const auto& plan = run.plan.offload;
    const auto rest_bytes = rest_bytes_per_parameter(run.settings);
    const auto parameters = run.layout.order.parameters();
    const double passes = static_cast<double>(tokens_per_step(run.settings)) /
                          static_cast<double>(std::max<std::uint64_t>(1, speed.pass_tokens));
    StepCosts costs;
    costs.rates = speed.rates;
    costs.passes_by = speed.passes_by;
    costs.sharing = speed.sharing;
    costs.pass = {.forward_s = speed.pass.forward_s * passes,
                  .backward_s = speed.pass.backward_s * passes};
    const auto again = inputs_made_again(run.layout.config, run.plan.shape).size();
    costs.pass.backward_s += costs.pass.forward_s * static_cast<double>(again) /
                             static_cast<double>(run.layout.config.layers);
    costs.update_s = seconds_at(static_cast<double>(parameters), speed.update.parameters_per_s);
    if (plan.planes.contains(offload::Plane::average))  // What was timed has none.
        costs.update_s +=
            seconds_at(2.0 * sizeof(float) * static_cast<double>(parameters), speed.rates.dram);
    costs.weight_read_bytes = plan.nvme_weight_read_bytes_per_step;
    costs.gradient_bytes = plan.nvme_gradient_bytes_per_step;
    costs.input_bytes = plan.nvme_activation_bytes_per_step;
    costs.update_read_bytes = plan.nvme_read_bytes_per_step - costs.weight_read_bytes -
                              costs.gradient_bytes - costs.input_bytes;
    costs.update_written_bytes =
        plan.nvme_written_bytes_per_step - costs.gradient_bytes - costs.input_bytes;
    if (run.budgets.device_kind == cuda::MemoryKind::device) {
        costs.input_link_bytes = run.plan.moved_input_bytes();
        costs.to_device_bytes = run.plan.to_device_bytes_per_step();
        costs.to_host_bytes = run.plan.to_host_bytes_per_step();
    }
    costs.commit_bytes = plan.commit_bytes;
    add_handling(run, speed, costs);
    costs.commit_interval = parse_commit_interval(run.settings.commit_every);
    // Passes before the last: what is factored is measured from the gradients alone but once.
    const bool factored = plan.second_moments == offload::SecondMoments::factored;
    const auto measured_passes = static_cast<double>(plan.passes - 1);
    const auto measured =
        static_cast<double>(parameters) *
        (rest_bytes * (factored ? 1 : measured_passes) + sizeof(float) * measured_passes);
    costs.dram_bytes = dram_bytes_per_step(parameters, rest_bytes, costs.demand()) +
                       static_cast<std::uint64_t>(measured);
    return costs;
}

}  // namespace spillway::engine
