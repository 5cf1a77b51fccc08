// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <filesystem>

#include "nvme/direct_file.h"

namespace spillway::offload::detail {

/// An empty file in `folder` that has no name any more: the kernel frees it when it is
/// closed, however the process ends. Throws FolderRefused when
/// `folder` cannot be used.
[[nodiscard]] nvme::DirectFile make_scratch_file(const std::filesystem::path& folder);

}  // namespace spillway::offload::detail
