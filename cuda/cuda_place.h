// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <string_view>

#include "cuda/cuda_core.h"
#include "cuda/cuda_memory.h"
#include "cuda/device.h"

namespace spillway::cuda {

/// What a CUDA device shows to the streams of others.
class CudaPlace {
  public:
    virtual ~CudaPlace() = default;
    [[nodiscard]] virtual const CudaCore& core() const noexcept = 0;
    [[nodiscard]] virtual const CudaMemory& memory() const noexcept = 0;

    /// Throws std::invalid_argument, saying who asks, where it is no CUDA device.
    [[nodiscard]] static const CudaPlace& of(const Device& device, std::string_view asker);
};

}  // namespace spillway::cuda
