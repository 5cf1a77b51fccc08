// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "nvme/io_backend.h"

namespace spillway::nvme {

/// What moves: one direction, or reads and overwrites in turn, half a file apart.
enum class StorageTraffic { read, write, mixed };

[[nodiscard]] const char* name_of(StorageTraffic traffic) noexcept;

/// Every combination of the lists is one row.
struct StorageBenchOptions {
    std::vector<std::filesystem::path> folders;  ///< a file and a queue in each, all at once
    std::uint64_t file_bytes = std::uint64_t{512} << 20;  ///< in each folder
    std::vector<std::size_t> block_bytes{std::size_t{1} << 20};
    std::vector<std::size_t> depths{32};  ///< operations in flight, in each folder
    std::vector<StorageTraffic> traffics{StorageTraffic::write, StorageTraffic::read,
                                         StorageTraffic::mixed};
    std::vector<BackendKind> backends{BackendKind::automatic};
    std::size_t rounds = 1;   ///< every row so often, in turn; each a row of its own
    double time_limit_s = 8;  ///< for all rows, in equal parts; the filling of the files is extra
    /// A row of writes whose rate has not settled goes on for so many more of its parts at most.
    std::size_t most_parts_to_settle = 3;
    std::function<bool()> stop = [] { return false; };  ///< asked often, from several threads
};

/// One combination. Rates are sums over the folders; writes count when they have been flushed.
struct StorageBenchRow {
    StorageTraffic traffic = StorageTraffic::read;
    std::string backend;
    std::size_t block_bytes = 0;
    std::size_t depth = 0;
    double bytes_per_s = 0;
    double p50_us = 0;  ///< of an operation, from submission to completion
    double p99_us = 0;
    double cpu_s_per_gb = 0;  ///< processor time of this process per 10^9 bytes
    std::uint64_t moved_bytes = 0;
    double wall_s = 0;

    /// How a drive's cache wears off.
    struct Settling {
        double burst_bytes_per_s = 0;      ///< in the first eighth of the first part
        double sustained_bytes_per_s = 0;  ///< in the second half of the last part, flush included
        bool settled = false;              ///< its two quarters differ by at most a tenth
    };
    std::optional<Settling> settling;  ///< of writes
};

struct StorageBenchDrive {
    std::filesystem::path folder;
    std::uint64_t file_bytes = 0;
    bool is_direct = false;      ///< false: the rates are those of the page cache
    double cached_fraction = 0;  ///< of the file's pages that lay in the page cache at the end
};

struct StorageBenchResult {
    std::vector<StorageBenchRow> rows;  ///< fewer than asked for when interrupted
    std::vector<StorageBenchDrive> drives;
    std::uint64_t verified_bytes = 0;  ///< read back at the end and found as written
    std::vector<std::string> notes;
    bool interrupted = false;
};

/// Problems of the options, a sentence each: sizes that do not fit each other, folders that do not
/// exist or have too little room (with the bytes needed and available). Empty: it can run.
[[nodiscard]] std::vector<std::string> problems_of(const StorageBenchOptions& options);

/// Fills a file in each folder with random data, measures each row by sequential requests over the
/// files again and again, and reads all back to compare. The files have no name once they are made,
/// so nothing is left however the process ends. Memory: 16 MiB and the blocks in flight, on huge
/// pages. Throws std::invalid_argument on problems_of(), std::system_error on I/O errors and
/// backends that do not work here, std::runtime_error naming file and offset on wrong data.
[[nodiscard]] StorageBenchResult run_storage_bench(const StorageBenchOptions& options);

}  // namespace spillway::nvme
