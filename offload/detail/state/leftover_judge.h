// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "offload/detail/state/extents_note.h"
#include "offload/detail/state/manifest.h"

/// What of a run's folders is left of a dead run, and why. Callers hold the folder's lock.
namespace spillway::offload::detail {

/// Not even a link that leads nowhere.
[[nodiscard]] bool is_missing(const std::filesystem::path& path);

/// By their names and places: the extents of a run on a drive, and in its state folder.
[[nodiscard]] bool is_extents_folder(const std::filesystem::path& path);
[[nodiscard]] bool is_inner_extents_folder(const std::filesystem::path& path);

/// Whose an extents folder is; nothing where that cannot be read.
[[nodiscard]] std::optional<ExtentsNote> read_note(const std::filesystem::path& folder);

/// The manifest, or else the draft of a run that was killed while it was being created. A manifest
/// that is there but cannot be used is FolderRefused; a draft like that was cut short before
/// anything else was made.
[[nodiscard]] std::optional<Manifest> manifest_or_draft(const std::filesystem::path& state_folder);

/// By its records, or by what its extents have seen.
[[nodiscard]] bool has_committed(const std::filesystem::path& state_folder,
                                 const std::optional<Manifest>& manifest);

/// Why an extents folder or a state folder is a leftover; nothing if it is not, or if it is not
/// understood.
[[nodiscard]] std::optional<std::string> leftover_reason(const std::filesystem::path& folder);

/// Files that a move made or left in a folder that the run's layout does name.
[[nodiscard]] std::vector<std::filesystem::path> unnamed_files(const std::filesystem::path& folder);

}  // namespace spillway::offload::detail
