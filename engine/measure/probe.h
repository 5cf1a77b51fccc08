// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <filesystem>
#include <vector>

#include "cpu_optim/isa.h"
#include "cuda/device.h"
#include "engine/measure/profile.h"
#include "offload/io_options.h"

namespace spillway::engine {

struct ProbeRequest {
    std::vector<std::filesystem::path> nvme_folders;  ///< none: no drive is measured; several
                                                      ///< are measured in turn and added up
    std::size_t threads = 1;
    cpu_optim::Isa isa = cpu_optim::Isa::scalar;
    cuda::Device& device;
    std::vector<offload::DriveIo> drive_io = {};       ///< of each folder; missing: the defaults
    std::size_t memory_bytes = std::size_t{32} << 20;  ///< taken at once, at most; 4 MiB at least.
                                                       ///< What a cache holds is faster
    double time_limit_s = 2.5;
};

/// Measures the machine: drive (probe_drive), memory and link, each for its share of
/// the time. One arena of memory_bytes serves all of them and is given back. Throws
/// std::invalid_argument on a request it cannot serve, std::system_error on I/O errors.
[[nodiscard]] MachineProfile probe_machine(const ProbeRequest& request);

/// What a measurement of `request` is filed under.
[[nodiscard]] ProfileKey profile_key(const ProbeRequest& request);

/// A profile of this machine from the file, if it is younger than `max_age_s`, else measured now
/// and stored there. An empty `path`: neither. A file that cannot be read or written, or is not
/// ours, is a note, no error.
[[nodiscard]] MachineProfile recall_or_probe(const ProbeRequest& request,
                                             const std::filesystem::path& path, double max_age_s);

}  // namespace spillway::engine
