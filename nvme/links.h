// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <filesystem>

namespace spillway::nvme {

/// `path` as a whole one, with what it links to in its place, link by link, also where nothing is
/// there yet: who replaces that file keeps the links. Throws std::system_error (ELOOP) where they
/// never end.
[[nodiscard]] std::filesystem::path behind_links(const std::filesystem::path& path);

}  // namespace spillway::nvme
