// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <string>

namespace spillway::engine {

/// What the machine does in a second, bytes; 0: there is no such resource, or it was not measured.
struct MachineRates {
    double nvme_read = 0;
    double nvme_write = 0;
    double nvme_mixed = 0;  ///< reads and writes at once, both counted
    double to_device = 0;
    double to_host = 0;
    double dram = 0;
};

/// What one step asks for.
struct StepDemand {
    std::uint64_t nvme_read_bytes = 0;
    std::uint64_t nvme_written_bytes = 0;
    std::uint64_t to_device_bytes = 0;
    std::uint64_t to_host_bytes = 0;
    std::uint64_t dram_bytes = 0;
    double cpu_s = 0;  ///< update, and passes that the processor makes; everything resident
    double gpu_s = 0;  ///< passes that a device with kernels of its own makes
};

/// Seconds a step keeps each resource busy, all others free.
struct LaneTimes {
    double cpu_s = 0;
    double nvme_s = 0;
    double link_s = 0;
    double dram_s = 0;
    double gpu_s = 0;
};

/// A demand whose rate is unknown does not count.
[[nodiscard]] LaneTimes lane_times(const MachineRates& rates, const StepDemand& demand);
/// Of reads and writes at once.
[[nodiscard]] double nvme_time_s(const MachineRates& rates, double read_bytes,
                                 double written_bytes);
/// Of copies both ways at once.
[[nodiscard]] double link_time_s(const MachineRates& rates, double to_device_bytes,
                                 double to_host_bytes);

/// The physical bound of a step and the resource that sets it.
struct StepBound {
    double seconds = 0;
    std::string by;  ///< "nvme", "link", "dram", "cpu", "gpu"; "" if nothing is known
};

/// Design section 3: the slowest resource's time.
[[nodiscard]] StepBound step_bound(const LaneTimes& lanes);

/// Bytes of one step that really cross DRAM, DMA included, for `parameters` elements with
/// `rest_bytes_per_parameter` of weight, residue and state each (AdamW: 12): the update reads and
/// writes state and gradient once, every gradient contribution is added up once more, drives and
/// link pass through DRAM once.
[[nodiscard]] std::uint64_t dram_bytes_per_step(std::uint64_t parameters,
                                                double rest_bytes_per_parameter,
                                                const StepDemand& transfers);

}  // namespace spillway::engine
