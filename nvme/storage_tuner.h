// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nvme/storage_bench.h"

namespace spillway::nvme {

/// How a drive is best driven, and what it then gives.
struct StorageSettings {
    std::string backend;  ///< one of backend_names(), never "auto"
    std::size_t block_bytes = 0;
    std::size_t depth = 0;
    double read_bytes_per_s = 0;
    double write_bytes_per_s = 0;  ///< flushed
    double mixed_bytes_per_s = 0;
    double cpu_s_per_gb = 0;  ///< the mean of the three
    friend bool operator==(const StorageSettings&, const StorageSettings&) = default;
};

/// By the rows of each backend, block and depth that has all three directions (the median where a
/// direction has several): the one under which a step that reads and writes alike is bound least,
/// by reads, writes or both together; of those within 3 % of it the one that costs the least
/// processor time. Empty if none has all three.
[[nodiscard]] std::optional<StorageSettings> best_settings(std::span<const StorageBenchRow> rows);

struct StorageTuning {
    std::optional<StorageSettings> best;  ///< empty when interrupted too early
    StorageBenchResult measured;          ///< every row
};

/// Measures what is worth trying on the drive of `folder`: first the backends that work here, then
/// blocks and depths with the best of them, each twice and in turn, since a drive's speed drifts.
/// Files and errors as of run_storage_bench().
[[nodiscard]] StorageTuning tune_storage(const std::filesystem::path& folder,
                                         std::uint64_t file_bytes, double time_limit_s,
                                         const std::function<bool()>& stop);

}  // namespace spillway::nvme
