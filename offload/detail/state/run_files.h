// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

/// What of a folder's content is Spillway's. Everything else is foreign and never touched.
namespace spillway::offload::detail {

/// What earlier versions called the file in which gradients wait, in an extents folder.
inline constexpr const char* former_gradients_name = "gradients.0";

/// Whether no record was ever written in this state folder: both are missing or all zeros. Throws
/// std::system_error if one cannot be read.
[[nodiscard]] bool never_committed(const std::filesystem::path& state_folder);

/// Removes the regular files of ours in an extents or a state folder (with its inner extents), the
/// lock last, then the folder, unless something foreign remains in it; flushes the parent. Missing
/// is fine. The caller holds the folder's lock, where there is one. A kill in between leaves a
/// folder that a second call finishes.
void remove_extents_folder(const std::filesystem::path& folder);
void remove_state_folder(const std::filesystem::path& folder);

/// Bytes allocated to a file; 0 if there is none.
[[nodiscard]] std::uint64_t allocated_bytes(const std::filesystem::path& file);

/// What removing would free: bytes allocated to the regular files of ours, also in inner extents.
[[nodiscard]] std::uint64_t own_bytes(const std::filesystem::path& folder);

/// The extents of any drive and layout in an extents folder: regular files alone.
[[nodiscard]] std::vector<std::filesystem::path> extents_files(const std::filesystem::path& folder);
/// Whether there is anything of such a name.
[[nodiscard]] bool holds_extents(const std::filesystem::path& folder);
/// The least number that no extents there have; 0 if there is no such folder.
[[nodiscard]] std::uint64_t next_extents_number(const std::filesystem::path& folder);

/// A folder itself; false for anything else, a symbolic link to one included.
[[nodiscard]] bool is_plain_folder(const std::filesystem::path& path);

}  // namespace spillway::offload::detail
