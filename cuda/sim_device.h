// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "cuda/device.h"

namespace spillway::cuda {

struct SimOptions {
    std::size_t capacity_bytes = 0;  ///< of device memory, at least 4096; cut to whole pages
    double link_bytes_per_s = 0;     ///< each way; 0 for a link that takes no time of its own
    double max_random_delay_s = 0;   ///< before each operation of a stream, to shake out races
    std::uint64_t seed = 0;          ///< of the delays, together with the number of the stream
    std::string name;                ///< by default made of capacity and rate: "sim:64MiB@8GB/s"
};

/// A simulated accelerator: limited memory of its own (poisoned when freed), streams that each
/// execute on a thread of their own, and a full-duplex link shared by the streams. Copies are real
/// and take bytes / rate of link time or, if that is longer, the time of the memcpy. A copy between
/// wrong kinds of memory is refused. Throws std::invalid_argument naming a bad option.
[[nodiscard]] std::unique_ptr<Device> make_sim_device(const SimOptions& options);

}  // namespace spillway::cuda
