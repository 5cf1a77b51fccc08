// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <memory>

#include "cuda/kernel_stream.h"
#include "engine/compute/compute.h"

namespace spillway::engine {

/// By kernels of the device: the work is called at once and queues them.
[[nodiscard]] std::unique_ptr<Compute> make_cuda_compute(cuda::KernelStream& kernels);

}  // namespace spillway::engine
