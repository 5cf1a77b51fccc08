// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <filesystem>
#include <vector>

#include "offload/plane.h"
#include "offload/state_folder.h"

/// Checks of what a user names on the command line, before anything is written. All throw
/// FolderRefused with a sentence that names the path, what it is and what is needed.
namespace spillway::offload::detail {

/// Absolute, without "." and "..". Does not look at the disk.
[[nodiscard]] std::filesystem::path absolute_path(const std::filesystem::path& path);

/// `out` as an absolute path: missing (with a writable folder above it) or an empty writable
/// folder.
[[nodiscard]] std::filesystem::path check_fresh_out(const std::filesystem::path& out);

/// `nvme` with links resolved: an existing writable folder.
[[nodiscard]] std::filesystem::path check_nvme(const std::filesystem::path& nvme);

/// `first`, if there is one, and the further drives, with links resolved: existing writable
/// folders, all different, of which none may be given without a first one. Two folders on one file
/// system are allowed: they share what it gives.
[[nodiscard]] std::vector<std::filesystem::path> check_drives(
    const std::filesystem::path& first, const std::vector<std::filesystem::path>& further);

/// That a run's folder keeps just these planes, and second moments in this way.
void check_planes(const StateFolder& folder, PlaneSet planes, SecondMoments second_moments);

}  // namespace spillway::offload::detail
