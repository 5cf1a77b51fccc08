// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <filesystem>

namespace spillway::offload::detail {

/// Locks the open file by flock, without waiting; false if somebody else holds it. `operation`:
/// LOCK_EX or LOCK_SH. Throws std::system_error naming the path.
[[nodiscard]] bool try_flock(int descriptor, int operation, const std::filesystem::path& path);

/// Whether `path` names the open file: another may have taken its place, or nothing.
[[nodiscard]] bool is_open_file(int descriptor, const std::filesystem::path& path) noexcept;

}  // namespace spillway::offload::detail
