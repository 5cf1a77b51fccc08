// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <filesystem>
#include <string_view>

#include "nvme/direct_file.h"

namespace spillway::offload::detail {

/// An empty file in `folder` that has no name: the kernel frees it when it is closed, however the
/// process ends. Messages call it by a name of this program's. Throws FolderRefused when `folder`
/// cannot be used.
[[nodiscard]] nvme::DirectFile make_scratch_file(const std::filesystem::path& folder);

/// A name that a scratch file may have for a moment.
[[nodiscard]] bool is_scratch_name(std::string_view name);

/// What a kill leaves where the file system makes no file without a name: the name, of an empty
/// file. One that a living process is about to take away itself looks the same, and may go too.
[[nodiscard]] bool is_left_scratch_file(const std::filesystem::path& path);

}  // namespace spillway::offload::detail
