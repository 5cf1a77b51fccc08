// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "offload/state_folder.h"

namespace spillway::offload::detail {

inline constexpr const char* manifest_name = "manifest.json";
/// Written before anything outside OUT is, so that a run killed while it was being created can be
/// traced; its renaming to manifest.json makes the run.
inline constexpr const char* manifest_draft_name = "manifest.json.tmp";
inline constexpr const char* inner_extents_name = "extents";  ///< OUT/spillway.state/extents
inline constexpr std::size_t manifest_limit_bytes = std::size_t{256} << 20;

/// `state_folder` (absolute) is what extents inside it are written relative to: OUT may move.
/// Throws std::invalid_argument for settings that are no JSON object and text that is not UTF-8.
[[nodiscard]] std::string manifest_text(const Manifest& manifest,
                                        const std::filesystem::path& state_folder);

/// Throws FolderRefused saying what is wrong: no JSON, an unknown format version, a missing,
/// unknown or ill-typed field, tensors that make no ElementOrder, extents at a place no run would
/// use.
[[nodiscard]] Manifest parse_manifest(std::string_view text,
                                      const std::filesystem::path& state_folder);

/// Reads and parses `state_folder`/`name`.
[[nodiscard]] Manifest read_manifest(const std::filesystem::path& state_folder, const char* name);

/// The settings as they stand in a manifest. Throws std::invalid_argument.
[[nodiscard]] std::string normalised_settings(std::string_view settings);

}  // namespace spillway::offload::detail
