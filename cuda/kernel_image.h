// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace spillway::cuda {

/// The kernels as this build compiled them, for every architecture in one image; empty where it was
/// configured without nvcc.
[[nodiscard]] std::span<const std::byte> kernel_image() noexcept;

/// The architectures in it, or why there is none.
[[nodiscard]] std::string_view kernel_image_description() noexcept;

}  // namespace spillway::cuda
