// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "engine/measure/profile.h"
#include "nvme/storage_bench.h"

namespace spillway::engine {

/// What `spillway bench storage` tells.
struct StorageReport {
    struct Tuned {
        std::filesystem::path folder;
        DriveSettings settings;
    };
    nvme::StorageBenchResult measured;
    std::vector<Tuned> tuned;       ///< with --tune
    std::filesystem::path profile;  ///< where `tuned` was written

    /// Takes in what another drive gave.
    void add(const nvme::StorageBenchResult& more);
};

[[nodiscard]] std::vector<std::string> storage_report_lines(const StorageReport& report);
[[nodiscard]] std::string storage_report_json(const StorageReport& report);

}  // namespace spillway::engine
