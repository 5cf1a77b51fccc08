// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "nvme/io_queue.h"
#include "offload/commit_log.h"
#include "offload/detail/drives/drive_files.h"
#include "offload/relocation.h"
#include "offload/state_folder.h"

namespace spillway::offload::detail {

/// The folders and the log of a run of a client's tensors: the one that `out` holds, if it is of
/// the same tensors and planes and has a commit, or a new one (also over one that never committed:
/// what its extents hold is named by nothing). A run that lies on other drives than are named is
/// moved to those first.
class DurableRun {
  public:
    struct Request {
        std::filesystem::path out;
        std::filesystem::path nvme;
        std::vector<std::filesystem::path> more_nvme;  ///< further drives
        std::vector<TensorSpec> tensors;
        PlaneSet stored;
        std::optional<AverageBasis> average;  ///< if `stored` has a plane of it
        SecondMoments second_moments = SecondMoments::planes;
        std::string client_settings;
        RelocationOptions relocation;  ///< for a run that lies elsewhere
    };
    /// Throws FolderRefused, and what relocate() throws.
    DurableRun(const DriveQueues& queues, Request request);

    [[nodiscard]] StateFolder& folder() noexcept { return *folder_; }
    [[nodiscard]] CommitLog& log() noexcept { return *log_; }
    /// The newest commit; none in a new run, and after it was let go.
    [[nodiscard]] const std::optional<CommitLog::Recovered>& recovered() const noexcept {
        return recovered_;
    }
    void let_recovered_go() { recovered_.reset(); }
    /// If the run was moved.
    [[nodiscard]] const std::optional<Relocation>& relocation() const noexcept {
        return relocation_;
    }
    /// The extents, with their room reserved.
    [[nodiscard]] OpenDrives open_extents() const;

  private:
    void open();
    [[nodiscard]] StateFolder open_or_create();
    [[nodiscard]] std::optional<StateFolder> open_former();

    const DriveQueues& queues_;
    Request request_;
    std::optional<StateFolder> folder_;
    std::optional<CommitLog> log_;
    std::optional<CommitLog::Recovered> recovered_;
    std::optional<Relocation> relocation_;
};

}  // namespace spillway::offload::detail
