// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <memory>

#include "cuda/cuda_device.h"
#include "tests/support/cuda_standin/standin.h"

namespace spillway::cuda {

/// `cuda:0` on the look-alike of the driver, whose kernels are the real ones on the host.
[[nodiscard]] inline CudaOptions standin_options(std::size_t capacity_bytes) {
    CudaOptions options;
    options.capacity_bytes = capacity_bytes;
    options.driver_library = SPILLWAY_CUDA_STANDIN;
    options.kernels = standin::emulated_kernels();
    return options;
}

[[nodiscard]] inline std::unique_ptr<Device> make_standin_device(
    std::size_t capacity_bytes, const standin::Settings& settings = {}) {
    standin::reset(settings);
    return make_cuda_device(standin_options(capacity_bytes));
}

}  // namespace spillway::cuda
