// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <filesystem>
#include <vector>

#include "offload/detail/state/extents_note.h"
#include "offload/detail/state/folder_lock.h"
#include "offload/state_folder.h"

namespace spillway::offload::detail {

/// A run's extents on one drive, held.
struct HeldExtents {
    std::filesystem::path file;
    FolderLock lock;
    ExtentsNote note;

    [[nodiscard]] std::filesystem::path folder() const { return file.parent_path(); }
};

/// The extents that a manifest names, by drive. Throws FolderRefused naming a folder that is in
/// use, missing, damaged or another run's.
[[nodiscard]] std::vector<HeldExtents> hold_extents(const Manifest& manifest, LockMode mode);

/// Makes the folder, which must not be there, and holds it with `note`.
[[nodiscard]] HeldExtents make_held_extents(const std::filesystem::path& file,
                                            const ExtentsNote& note);

/// Makes a folder that must not be there, and those above it, durably.
void make_new_folder(const std::filesystem::path& folder);

/// Whether `out` holds a run of that name.
[[nodiscard]] bool holds_run_of(const std::filesystem::path& out, const RunId& run);

/// Whether what a note is about may be given up by the run in `out`: its own, and not what another
/// OUT with a copy of the run lives on.
[[nodiscard]] bool may_give_up(const ExtentsNote& note, const RunId& run,
                               const std::filesystem::path& out);

}  // namespace spillway::offload::detail
