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

}  // namespace spillway::cuda
