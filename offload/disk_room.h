// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

namespace spillway::offload {

/// Whether `folders`, one a drive, have room for `needed_bytes` divided evenly; a folder that is
/// yet to be made counts as the one above it. Throws PlanRefused naming the folder, needed and
/// available bytes. Folders on one file system need the sum of their shares there.
void require_disk_room(std::span<const std::filesystem::path> folders, std::uint64_t needed_bytes);

}  // namespace spillway::offload
