// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/train/bound.h"

#include <algorithm>
#include <array>
#include <utility>

namespace spillway::engine {
namespace {

double time_of(std::uint64_t bytes, double rate) noexcept {
    return rate > 0 ? static_cast<double>(bytes) / rate : 0;
}

}  // namespace

StepBound step_bound(const MachineRates& rates, const StepDemand& demand) {
    const double nvme =
        std::max({time_of(demand.nvme_read_bytes, rates.nvme_read),
                  time_of(demand.nvme_written_bytes, rates.nvme_write),
                  time_of(demand.nvme_read_bytes + demand.nvme_written_bytes, rates.nvme_mixed)});
    const double link = std::max(time_of(demand.to_device_bytes, rates.to_device),
                                 time_of(demand.to_host_bytes, rates.to_host));
    const std::array<std::pair<const char*, double>, 4> times{
        {{"cpu", demand.cpu_s},
         {"nvme", nvme},
         {"link", link},
         {"dram", time_of(demand.dram_bytes, rates.dram)}}};
    StepBound bound;
    for (const auto& [resource, seconds] : times) {
        if (seconds > bound.seconds)
            bound = {seconds, resource};
    }
    return bound;
}

std::uint64_t dram_bytes_per_step(std::uint64_t parameters, std::uint64_t rest_bytes_per_parameter,
                                  const StepDemand& transfers) {
    // Weight, residue and state, in and out. Gradient: written by backward, read and added to the
    // waiting one by the scan, read by the update: four passes of 4 bytes.
    const std::uint64_t state = 2 * rest_bytes_per_parameter;
    constexpr std::uint64_t gradient = 4 * 4;
    return parameters * (state + gradient) + transfers.nvme_read_bytes +
           transfers.nvme_written_bytes + transfers.to_device_bytes + transfers.to_host_bytes;
}

}  // namespace spillway::engine
