// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cuda/device.h"
#include "engine/cli/console.h"
#include "engine/compute/compute_pool.h"
#include "engine/measure/update_calibration.h"
#include "engine/model/gpt2_step.h"
#include "engine/plan/bound.h"
#include "engine/plan/planned_run.h"
#include "offload/device_group.h"

namespace spillway::engine {

/// What computes: made for a run, or to measure for a plan.
struct RunMachine {
    std::unique_ptr<cuda::Device> device;  ///< the first
    std::unique_ptr<cuda::Stream> compute;
    /// Where the memory manager computes for several devices: host memory, page-locked for GPUs;
    /// null for one.
    std::unique_ptr<cuda::Device> host;
    std::unique_ptr<cuda::Stream> host_compute;
    /// The others, which are as the first one is.
    std::vector<std::unique_ptr<cuda::Device>> more_devices;
    std::vector<std::unique_ptr<cuda::Stream>> more_compute;
    std::unique_ptr<ComputePool> pool;

    /// Where the memory manager brings its units.
    [[nodiscard]] cuda::Device& engine_device() const noexcept { return host ? *host : *device; }
    [[nodiscard]] cuda::Stream& engine_compute() const noexcept {
        return host ? *host_compute : *compute;
    }
    /// Every device with its stream, by rank.
    [[nodiscard]] std::vector<offload::GroupMember> members() const;
    /// By commas, as on the command line.
    [[nodiscard]] std::string device_names() const;
    /// Of all devices together, but the peak: the largest of them. Copies of a host device cross no
    /// link and are not counted.
    [[nodiscard]] cuda::DeviceStatistics device_statistics() const;
};
/// Of a run with the GPUs that it was fitted to, if any. Warmed up, so that what libraries allocate
/// once is there.
[[nodiscard]] RunMachine make_run_machine(const TrainSettings& settings,
                                          const MemoryBudgets& budgets, Gpus gpus);
/// Lets devices reach each other's memory; says a sentence of each pair whose copies go through the
/// host's.
[[nodiscard]] std::vector<std::string> connect_devices(const RunMachine& machine);

/// What a run's forward and backward passes keep busy.
enum class PassesBy { cpu, gpu };

/// How fast this machine does a run's work.
struct MachineSpeed {
    PassesBy passes_by = PassesBy::cpu;
    MachineRates rates;
    UpdateSpeed update;  ///< of the run's optimizer
    PassTimes pass;      ///< of pass_tokens, everything resident
    std::uint64_t pass_tokens = 0;
    double sharing = 1;  ///< what a second of other work adds to passes on the same processor
};

/// From the machine's profile, made within the last day or now, and passes of the run's own shapes
/// and updates of its own optimizer: a few seconds. Notes go to the console.
[[nodiscard]] MachineSpeed measure_speed(const PlannedRun& run, const RunMachine& machine,
                                         Console& console);

/// What one step of a planned run costs, resource by resource.
struct StepCosts {
    MachineRates rates;
    PassesBy passes_by = PassesBy::cpu;
    PassTimes pass;
    double update_s = 0;  ///< arithmetic of all its passes, everything in memory
    /// The processor's work on what moves: fetched weights are verified, copied and joined,
    /// gradients taken in and scanned, state on a drive verified and given new checksums.
    double weights_s = 0;
    double gradients_s = 0;
    double checksums_s = 0;
    double inputs_s = 0;  ///< of layers' inputs that leave a device: copied and verified
    double sharing = 1;   ///< what a second of that and of updates adds to passes beside it
    /// Bytes: of the update's own traffic (a second pass over gradients on the drive too), of
    /// weights read for the passes, and of gradients that wait on the drive (written, then read).
    std::uint64_t update_read_bytes = 0;
    std::uint64_t update_written_bytes = 0;
    std::uint64_t weight_read_bytes = 0;
    std::uint64_t gradient_bytes = 0;
    /// Of layers' inputs: written to the drive in forward and read in backward; and of what crosses
    /// the link, to the host in forward and to the device in backward.
    std::uint64_t input_bytes = 0;
    std::uint64_t input_link_bytes = 0;
    std::uint64_t to_device_bytes = 0;
    std::uint64_t to_host_bytes = 0;
    std::uint64_t dram_bytes = 0;
    /// What a commit writes beside the steps' own traffic, and when it is made.
    std::uint64_t commit_bytes = 0;
    CommitInterval commit_interval;

    [[nodiscard]] StepDemand demand() const noexcept;
};

/// Passes are taken to scale with the tokens of a step.
[[nodiscard]] StepCosts step_costs(const MachineSpeed& speed, const PlannedRun& run);

}  // namespace spillway::engine
