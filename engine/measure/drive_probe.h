// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/measure/profile.h"
#include "offload/io_options.h"

namespace spillway::engine {

struct DriveProbeRequest {
    std::filesystem::path folder;
    offload::DriveIo io = {};      ///< as the run will drive it
    std::span<std::byte> buffers;  ///< 2 MiB at least, on huge pages; what they hold is written
    double time_limit_s = 1.5;
    std::uint64_t file_bytes = std::uint64_t{256} << 20;  ///< less on a nearly full drive
};

struct DriveProbeResult {
    std::optional<DriveRates> rates;  ///< none: no room for the file
    std::vector<std::string> notes;
};

/// Measures the drive under `folder` with a file that has no name from its first moment on, so that
/// nothing is left whatever happens. The file is filled, then read, overwritten and both at once
/// are timed in turn, several rounds, and the medians taken. Throws std::system_error on I/O
/// errors.
[[nodiscard]] DriveProbeResult probe_drive(const DriveProbeRequest& request);

/// Fills `bytes` with data that no drive can compress.
void fill_incompressible(std::span<std::byte> bytes, std::uint64_t seed) noexcept;

}  // namespace spillway::engine
