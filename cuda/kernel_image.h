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

/// 13 where an nvcc of 13.x compiled them; 0 where there are none. Drivers of an older major
/// version do not take them.
[[nodiscard]] int kernel_image_cuda_major() noexcept;

}  // namespace spillway::cuda
