// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdlib>
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

/// For tests tagged [gpu]: the look-alike, or the real device that SPILLWAY_TEST_DEVICE names, with
/// the kernels that this build has.
[[nodiscard]] inline std::unique_ptr<Device> make_gpu_test_device(std::size_t capacity_bytes) {
    if (const char* const real = std::getenv("SPILLWAY_TEST_DEVICE")) {
        standin::reset({});
        return make_device(real, capacity_bytes);
    }
    return make_standin_device(capacity_bytes);
}

}  // namespace spillway::cuda
