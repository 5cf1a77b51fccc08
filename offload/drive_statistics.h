// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <filesystem>

namespace spillway::offload {

/// What one drive of several (or the only one) did since construction.
struct DriveStatistics {
    std::filesystem::path folder;  ///< the one given for it
    std::uint64_t read_bytes = 0;
    std::uint64_t written_bytes = 0;
    double read_busy_s = 0;  ///< time with at least one read in flight
    double write_busy_s = 0;
    double share = 1;  ///< part of the state that lies there

    [[nodiscard]] double read_bytes_per_s() const noexcept {
        return read_busy_s > 0 ? static_cast<double>(read_bytes) / read_busy_s : 0;
    }
    [[nodiscard]] double write_bytes_per_s() const noexcept {
        return write_busy_s > 0 ? static_cast<double>(written_bytes) / write_busy_s : 0;
    }
};

}  // namespace spillway::offload
