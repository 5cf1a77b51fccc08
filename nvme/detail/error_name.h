// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <string>

namespace spillway::nvme::detail {

/// "EIO: Input/output error" for a positive errno; thread-safe.
[[nodiscard]] std::string error_name(int error);

}  // namespace spillway::nvme::detail
