// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/state/scratch_file.h"

#include <system_error>
#include <utility>

#include "offload/commit_table.h"
#include "offload/detail/state/folder_checks.h"

namespace spillway::offload::detail {

namespace {

/// Takes the name of a file away at the end, whatever happens before.
class RemovedName {
  public:
    explicit RemovedName(std::filesystem::path path) : path_(std::move(path)) {}
    ~RemovedName() {
        std::error_code ignored;
        std::filesystem::remove(path_, ignored);
    }
    RemovedName(const RemovedName&) = delete;
    RemovedName& operator=(const RemovedName&) = delete;

  private:
    std::filesystem::path path_;
};

}  // namespace

nvme::DirectFile make_scratch_file(const std::filesystem::path& folder) {
    const auto path = check_nvme(folder) / ("spillway.scratch." + RunId::random().text());
    nvme::DirectFile file(path, nvme::OpenMode::create_exclusive, nvme::DirectMode::automatic);
    const RemovedName removed(path);
    return file;
}

}  // namespace spillway::offload::detail
