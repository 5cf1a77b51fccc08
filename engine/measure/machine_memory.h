// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace spillway::engine {

/// What this process may still take, and what sets the limit.
struct AvailableMemory {
    std::size_t bytes = 0;
    std::string limited_by;  ///< "the machine", or the control group's folder
};

/// The least of MemAvailable and, of the process's memory control group (version 1 or 2) and every
/// one above it, limit - usage + file cache that can be dropped. `root` is "/" but in tests. Throws
/// std::runtime_error if the kernel does not say.
[[nodiscard]] AvailableMemory available_memory(const std::filesystem::path& root = "/");

/// Free memory kept back when no --host-mem is given: a tenth, at least 256 MiB and at most 4 GiB.
[[nodiscard]] std::size_t memory_margin(std::size_t available_bytes) noexcept;

/// Resident bytes of this process, now and at most so far.
struct ResidentMemory {
    std::size_t now_bytes = 0;
    std::size_t peak_bytes = 0;
};
[[nodiscard]] ResidentMemory resident_memory(const std::filesystem::path& root = "/");

/// Processors this process may run on (its affinity), at least 1.
[[nodiscard]] std::size_t usable_processors();

}  // namespace spillway::engine
