// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nvme/io_backend.h"

namespace spillway::offload {

/// How one drive is driven.
struct DriveIo {
    nvme::BackendKind backend = nvme::BackendKind::automatic;
    std::size_t depth = 32;                              ///< operations in flight
    std::size_t operation_bytes = std::size_t{4} << 20;  ///< at most; longer requests are cut
    friend bool operator==(const DriveIo&, const DriveIo&) = default;
};

/// How the drives of the NVMe tier are driven. Placement only: it changes no bit of the result.
struct IoOptions {
    DriveIo every_drive = {};  ///< where `drives` says nothing
    /// By drive, in the order of the folders.
    std::vector<DriveIo> drives = {};
    /// A request that has not ended for so long is told to `on_overdue`, once, with whatever else
    /// is open on that drive: which file, where, since when. The request goes on.
    double deadline_s = 60;
    /// Runs on a thread of the drive's queue; must not throw, nor call the engine. Empty: nobody is
    /// told.
    std::function<void(const std::string&)> on_overdue = {};
    /// In place of the backends, given the depth: for tests.
    std::function<std::unique_ptr<nvme::IoBackend>(std::size_t depth)> backend_factory = {};
    /// In place of the rates that drives show, asked after each commit: for tests.
    std::function<std::vector<double>()> drive_rates = {};

    [[nodiscard]] const DriveIo& of(std::size_t drive) const noexcept {
        return drive < drives.size() ? drives[drive] : every_drive;
    }
};

}  // namespace spillway::offload
