// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "offload/detail/drives/drive_queues.h"
#include "offload/detail/drives/tile_store.h"
#include "offload/drive_statistics.h"
#include "offload/state_folder.h"

namespace spillway::offload::detail {

/// Bytes per second that a drive gave: of reads and writes in turn, as an update has them. None:
/// too little was moved to say.
[[nodiscard]] double seen_bytes_per_s(const nvme::IoStatistics& since,
                                      const nvme::IoStatistics& now) noexcept;

/// The rates that drives showed, the latest most, since the last time there was enough to say. Not
/// thread-safe. The queues must outlive it.
class RatesSeen {
  public:
    explicit RatesSeen(const DriveQueues& queues);
    /// Empty: some drive has moved too little since then.
    [[nodiscard]] std::vector<double> operator()();

  private:
    const DriveQueues* queues_;
    std::vector<nvme::IoStatistics> before_;
    std::vector<double> smooth_;
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

/// The extents of a run that only reads them, with the queue of each.
[[nodiscard]] std::vector<DriveFile> open_to_read(const StateFolder& folder,
                                                  const DriveQueues& queues);

/// What each drive did and holds.
[[nodiscard]] std::vector<DriveStatistics> drive_statistics(
    const DriveQueues& queues, std::span<const std::filesystem::path> folders,
    std::span<const std::uint64_t> shares);

}  // namespace spillway::offload::detail
