// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "cuda/device_counters.h"
#include "cuda/sim_device.h"
#include "cuda/sim_link.h"
#include "cuda/sim_memory.h"

namespace spillway::cuda {

/// What a simulated device and its streams share; the last of them takes it along.
struct SimCore {
    explicit SimCore(const SimOptions& with)
        : options(with),
          memory(with.name, with.capacity_bytes),
          to_device(with.link_bytes_per_s),
          to_host(with.link_bytes_per_s) {}

    const SimOptions options;
    SimMemory memory;
    SimLink to_device;
    SimLink to_host;
    DeviceCounters counters;
    std::atomic<std::uint64_t> streams = 0;  ///< created so far: numbers them
};

}  // namespace spillway::cuda
