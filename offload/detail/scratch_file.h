// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <filesystem>

#include "nvme/direct_file.h"

namespace spillway::offload::detail {

/// A file of `bytes` zeros in `folder` that has no name any more: the kernel frees it when it is
/// closed, however the process ends. Throws FolderRefused when
/// `folder` cannot be used, std::system_error when it has no room.
[[nodiscard]] nvme::DirectFile make_scratch_file(const std::filesystem::path& folder,
                                                 std::uint64_t bytes);

}  // namespace spillway::offload::detail
