// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <filesystem>
#include <vector>

#include "offload/detail/state/folder_lock.h"
#include "offload/detail/state/held_extents.h"
#include "offload/state_folder.h"

namespace spillway::offload {

class StateFolder::Impl {
  public:
    Manifest manifest;
    std::filesystem::path folder;
    LockMode mode;
    detail::FolderLock state_lock;
    std::vector<detail::HeldExtents> extents;  ///< by drive

    [[nodiscard]] std::filesystem::path out() const { return folder.parent_path(); }
};

}  // namespace spillway::offload
