// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "nvme/io_queue.h"
#include "offload/detail/tile_store.h"
#include "offload/drive_statistics.h"

namespace spillway::offload::detail {

/// One queue a drive, so that a slow one holds up none of the others. At least one: a run's commits
/// go through the first.
using DriveQueues = std::vector<std::unique_ptr<nvme::IoQueue>>;
[[nodiscard]] DriveQueues make_drive_queues(
    std::size_t drives, const std::function<std::unique_ptr<nvme::IoBackend>()>& backend,
    std::size_t depth);

[[nodiscard]] nvme::IoStatistics sum_of(const DriveQueues& queues);

/// Bytes per second that a drive gave: of reads and writes in turn, as an update has them. None:
/// too little was moved to say.
[[nodiscard]] double seen_bytes_per_s(const nvme::IoStatistics& since,
                                      const nvme::IoStatistics& now) noexcept;

/// The rates that drives showed since the last time there was enough to say. Not thread-safe. The
/// queues must outlive it.
class RatesSeen {
  public:
    explicit RatesSeen(const DriveQueues& queues);
    /// Empty: some drive has moved too little since then.
    [[nodiscard]] std::vector<double> operator()();

  private:
    const DriveQueues* queues_;
    std::vector<nvme::IoStatistics> before_;
};

/// What is opened: files with the room that the map gives them.
struct OpenDrives {
    std::vector<DriveFile> files;
    ExtentMap map;
};

/// Opens files on drives, makes them if they are missing, and reserves on each the room of its
/// share. A drive without that room is a std::system_error with path, needed and available bytes.
/// New files on several drives are first written to for a moment, if they are to hold enough that
/// it matters; drives then get shares in proportion.
[[nodiscard]] OpenDrives open_drives(const DriveQueues& queues, std::vector<nvme::DirectFile> files,
                                     ExtentMap map);

/// What each drive did and holds.
[[nodiscard]] std::vector<DriveStatistics> drive_statistics(
    const DriveQueues& queues, std::span<const std::filesystem::path> folders,
    std::span<const std::uint64_t> shares);

}  // namespace spillway::offload::detail
