// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <span>

namespace spillway::cuda {

/// Every kernel of the image: what a device looks up when it loads it.
[[nodiscard]] std::span<const char* const> kernel_names() noexcept;

}  // namespace spillway::cuda
