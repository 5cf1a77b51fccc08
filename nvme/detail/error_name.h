// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <string>
#include <system_error>

namespace spillway::nvme::detail {

/// "EIO: Input/output error" for a positive errno; thread-safe.
[[nodiscard]] std::string error_name(int error);

/// "EPERM: Operation not permitted (io_uring_setup)" for an error whose text says what failed.
[[nodiscard]] std::string refusal_text(const std::system_error& error);

}  // namespace spillway::nvme::detail
