// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "offload/io_options.h"
#include "offload/state_folder.h"

namespace spillway::offload {

struct RelocationOptions {
    /// `drives`: those moved to; the others are driven as every_drive says.
    IoOptions io = {};
    /// Asked between pieces of about a MiB: whether to give up. Empty: never.
    std::function<bool()> stop = {};
    /// Told now and then how much has arrived. Empty: nobody is.
    std::function<void(std::uint64_t moved_bytes, std::uint64_t all_bytes)> progress = {};
};

/// What a move did.
struct Relocation {
    std::vector<std::filesystem::path> from;  ///< extents folders
    std::vector<std::filesystem::path> to;
    std::uint64_t bytes = 0;  ///< read, verified and written
    double seconds = 0;
    std::string left =
        {};  ///< what of the former layout could not be removed, and why; "" if nothing
};

/// Moves a run's state, bit for bit, to the drives of `nvme` (none: into the state folder): a new
/// layout is made beside the old one, filled from the newest commit, every tile verified, and
/// published by one commit and one rename; then the old one is removed. At any moment before the
/// rename a kill, a power cut or an error leaves the run as it was, and from then on as it is to
/// be. `folder` must be held exclusively; it is on the new layout afterwards, and still on the old
/// one after an exception.
///
/// Takes 16 MiB of host memory, and a few times the commit table.
///
/// None: the run has no commit, so there is nothing to move; nothing was done.
///
/// Throws PlanRefused (a drive lacks the room for the new copy), FolderRefused (a folder that
/// cannot be used, or that somebody else holds; a run made with durable commits off that did not
/// end cleanly), IntegrityError (a committed tile is damaged), RelocationStopped,
/// std::system_error.
[[nodiscard]] std::optional<Relocation> relocate(StateFolder& folder,
                                                 const std::vector<std::filesystem::path>& nvme,
                                                 const RelocationOptions& options);

/// Removes what moves that were cut short left of this run: of a layout that was never published,
/// or of one that was left. `folder` must be held exclusively. What cannot be reached stays;
/// find_leftovers() finds it.
void finish_relocations(StateFolder& folder);

}  // namespace spillway::offload
