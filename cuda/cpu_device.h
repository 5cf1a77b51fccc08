// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <memory>

#include "cuda/device.h"

namespace spillway::cuda {

/// The host itself as a device: MemoryKind::host, at most `capacity_bytes` of it. A stream executes
/// each call on the calling thread before it returns, so its events have always happened; wait()
/// blocks the host. Copies work, between any host memory.
[[nodiscard]] std::unique_ptr<Device> make_cpu_device(std::size_t capacity_bytes);

/// Host memory whose buffers `for_copies`, a GPU, has page-locked for copies of all GPUs; it must
/// outlive the device. Where one cannot be locked, allocate() throws what register_host() does.
[[nodiscard]] std::unique_ptr<Device> make_page_locked_host(std::size_t capacity_bytes,
                                                            Device& for_copies);

}  // namespace spillway::cuda
