// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "offload/commit_log.h"
#include "offload/state_folder.h"
#include "tests/offload/sample_commits.h"
#include "tests/support/temporary_folder.h"

namespace spillway::testing {

inline std::vector<offload::TensorSpec> sample_tensors() {
    return {{.name = "embedding", .shape = {50, 8}, .group = 1, .contributions = 2},
            {.name = "bias \u00e9", .shape = {}, .group = 0, .contributions = 1}};
}

/// A place for runs: OUT folders, and one folder on a drive.
class Places {
  public:
    Places() { std::filesystem::create_directory(nvme); }

    [[nodiscard]] offload::StateFolder create(const std::filesystem::path& where) const {
        return offload::StateFolder::create(where, nvme, sample_tensors(), "on", "{}");
    }
    /// A run that has completed a commit, with a state of 64 KiB on the drive; closed.
    offload::RunId committed_run(const std::filesystem::path& where) const {
        auto folder = create(where);
        set_file_text(folder.extents_file(), std::string(65536, 'x'));
        const auto queue = real_queue();
        offload::CommitLog log(*queue, folder.folder(), folder.manifest().run, sample_shape,
                               offload::CommitLog::Start::create);
        log.commit(sample_table(1));
        folder.note_commit(1);
        return folder.manifest().run;
    }
    [[nodiscard]] std::filesystem::path extents_of(const offload::RunId& run) const {
        return nvme / offload::StateFolder::extents_name / run.text();
    }

  private:
    TemporaryFolder folder_;

  public:
    const std::filesystem::path root = folder_.path();
    const std::filesystem::path out = root / "out";
    const std::filesystem::path nvme = root / "nvme";
};

/// The text of the FolderRefused that opening `out` throws; empty if it opens.
inline std::string refusal_of_open(const std::filesystem::path& out,
                                   offload::LockMode mode = offload::LockMode::exclusive) {
    try {
        offload::StateFolder::open(out, mode);
    } catch (const offload::FolderRefused& error) {
        return error.what();
    }
    return {};
}

/// Runs `action` in a forked child; its exit status, or minus the signal that ended it.
inline int in_child(const std::function<int()>& action) {
    const pid_t child = ::fork();
    if (child == 0)
        ::_exit(action());
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace spillway::testing
