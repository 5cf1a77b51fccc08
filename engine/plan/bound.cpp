// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/plan/bound.h"

#include <algorithm>
#include <array>
#include <utility>

namespace spillway::engine {
namespace {

double time_of(double bytes, double rate) noexcept {
    return rate > 0 ? bytes / rate : 0;
}

}  // namespace

double nvme_time_s(const MachineRates& rates, double read_bytes, double written_bytes) {
    return std::max({time_of(read_bytes, rates.nvme_read), time_of(written_bytes, rates.nvme_write),
                     time_of(read_bytes + written_bytes, rates.nvme_mixed)});
}

double link_time_s(const MachineRates& rates, double to_device_bytes, double to_host_bytes) {
    return std::max(time_of(to_device_bytes, rates.to_device),
                    time_of(to_host_bytes, rates.to_host));
}

LaneTimes lane_times(const MachineRates& rates, const StepDemand& demand) {
    return {.cpu_s = demand.cpu_s,
            .nvme_s = nvme_time_s(rates, static_cast<double>(demand.nvme_read_bytes),
                                  static_cast<double>(demand.nvme_written_bytes)),
            .link_s = link_time_s(rates, static_cast<double>(demand.to_device_bytes),
                                  static_cast<double>(demand.to_host_bytes)),
            .dram_s = time_of(static_cast<double>(demand.dram_bytes), rates.dram),
            .gpu_s = demand.gpu_s};
}

StepBound step_bound(const LaneTimes& lanes) {
    const std::array<std::pair<const char*, double>, 5> times{{{"cpu", lanes.cpu_s},
                                                               {"nvme", lanes.nvme_s},
                                                               {"link", lanes.link_s},
                                                               {"dram", lanes.dram_s},
                                                               {"gpu", lanes.gpu_s}}};
    StepBound bound;
    for (const auto& [resource, seconds] : times) {
        if (seconds > bound.seconds)
            bound = {seconds, resource};
    }
    return bound;
}

std::uint64_t dram_bytes_per_step(std::uint64_t parameters, double rest_bytes_per_parameter,
                                  const StepDemand& transfers) {
    // Weight, residue and state, in and out. Gradient: written by backward, read and added to the
    // waiting one by the scan, read by the update: four passes of 4 bytes.
    const double state = 2 * rest_bytes_per_parameter;
    constexpr double gradient = 4 * 4;
    const auto update =
        static_cast<std::uint64_t>(static_cast<double>(parameters) * (state + gradient));
    return update + transfers.nvme_read_bytes + transfers.nvme_written_bytes +
           transfers.to_device_bytes + transfers.to_host_bytes;
}

}  // namespace spillway::engine
