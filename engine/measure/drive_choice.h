// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "engine/measure/profile.h"
#include "engine/settings/train_settings.h"
#include "offload/io_options.h"

namespace spillway::engine {

/// How each of `folders` is driven: as `spillway bench storage --tune` found best for its file
/// system, where the backend is free (`automatic`) or is the one it chose and works here; else by
/// the defaults under `backend`. Throws std::system_error naming a folder that is not there.
[[nodiscard]] std::vector<offload::DriveIo> choose_drive_io(
    std::span<const std::filesystem::path> folders, nvme::BackendKind backend,
    std::span<const DriveSettings> tuned);

/// The same for a run, with the profile that it names or the machine's own, and with block and
/// depth of its tuning where that sets them.
[[nodiscard]] std::vector<offload::DriveIo> choose_drive_io(const TrainSettings& settings);

/// "io_uring, 4194304 bytes at depth 32": for people, and to tell measurements apart.
[[nodiscard]] std::string drive_io_text(const offload::DriveIo& io);

/// The profile that a run with these settings reads and writes; empty: none.
[[nodiscard]] std::filesystem::path profile_path(const TrainSettings& settings);

}  // namespace spillway::engine
