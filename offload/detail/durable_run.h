// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "nvme/io_queue.h"
#include "offload/commit_log.h"
#include "offload/detail/drive_files.h"
#include "offload/state_folder.h"

namespace spillway::offload::detail {

/// The folders and the log of a run of a client's tensors: the one that `out` holds, if it is of
/// the same tensors and planes and has a commit, or a new one (also over one that never committed:
/// what its extents hold is named by nothing).
class DurableRun {
  public:
    struct Request {
        std::filesystem::path out;
        std::filesystem::path nvme;
        std::vector<std::filesystem::path> more_nvme;  ///< further drives
        std::vector<TensorSpec> tensors;
        PlaneSet stored;
        std::string client_settings;
    };
    /// Throws FolderRefused.
    DurableRun(const DriveQueues& queues, Request request);

    [[nodiscard]] StateFolder& folder() noexcept { return *folder_; }
    [[nodiscard]] CommitLog& log() noexcept { return *log_; }
    /// The newest commit; none in a new run, and after it was let go.
    [[nodiscard]] const std::optional<CommitLog::Recovered>& recovered() const noexcept {
        return recovered_;
    }
    void let_recovered_go() { recovered_.reset(); }
    /// The extents, with their room reserved.
    [[nodiscard]] OpenDrives open_extents() const;

  private:
    void open();

    const DriveQueues& queues_;
    Request request_;
    std::uint64_t tiles_;
    std::optional<StateFolder> folder_;
    std::optional<CommitLog> log_;
    std::optional<CommitLog::Recovered> recovered_;
};

}  // namespace spillway::offload::detail
