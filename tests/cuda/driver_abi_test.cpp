// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors

// The declarations of cuda/driver_api.h beside those of <cuda.h>: what is passed the same way is
// the same to a caller.
#include <cstddef>

#include <catch2/catch.hpp>
#include <cuda.h>

#include "cuda/driver_api.h"
#include "tests/cuda/abi_alike.h"

namespace driver = spillway::cuda::driver;
namespace testing = spillway::cuda::testing;

namespace {

// <cuda.h> gives most of the versioned names as macros of the plain ones.
#define SPILLWAY_TEST_ALIKE(name, symbol, parameters)                                         \
    static_assert(testing::Alike<decltype(driver::Functions::name), decltype(symbol)>::value, \
                  #symbol " is declared otherwise in <cuda.h>");
SPILLWAY_CUDA_DRIVER_FUNCTIONS(SPILLWAY_TEST_ALIKE)

static_assert(sizeof(driver::RowsDescriptor) == sizeof(CUDA_MEMCPY2D));
static_assert(offsetof(driver::RowsDescriptor, from_type) ==
              offsetof(CUDA_MEMCPY2D, srcMemoryType));
static_assert(offsetof(driver::RowsDescriptor, from_host) == offsetof(CUDA_MEMCPY2D, srcHost));
static_assert(offsetof(driver::RowsDescriptor, from_device) == offsetof(CUDA_MEMCPY2D, srcDevice));
static_assert(offsetof(driver::RowsDescriptor, from_array) == offsetof(CUDA_MEMCPY2D, srcArray));
static_assert(offsetof(driver::RowsDescriptor, from_pitch) == offsetof(CUDA_MEMCPY2D, srcPitch));
static_assert(offsetof(driver::RowsDescriptor, to_x_bytes) == offsetof(CUDA_MEMCPY2D, dstXInBytes));
static_assert(offsetof(driver::RowsDescriptor, to_type) == offsetof(CUDA_MEMCPY2D, dstMemoryType));
static_assert(offsetof(driver::RowsDescriptor, to_host) == offsetof(CUDA_MEMCPY2D, dstHost));
static_assert(offsetof(driver::RowsDescriptor, to_device) == offsetof(CUDA_MEMCPY2D, dstDevice));
static_assert(offsetof(driver::RowsDescriptor, to_array) == offsetof(CUDA_MEMCPY2D, dstArray));
static_assert(offsetof(driver::RowsDescriptor, to_pitch) == offsetof(CUDA_MEMCPY2D, dstPitch));
static_assert(offsetof(driver::RowsDescriptor, row_bytes) == offsetof(CUDA_MEMCPY2D, WidthInBytes));
static_assert(offsetof(driver::RowsDescriptor, rows) == offsetof(CUDA_MEMCPY2D, Height));

struct Constant {
    long ours;
    long theirs;
};

}  // namespace

TEST_CASE("the driver's constants are those of <cuda.h>") {
    const auto [ours, theirs] =
        GENERATE(Constant{driver::success, CUDA_SUCCESS},
                 Constant{driver::invalid_value, CUDA_ERROR_INVALID_VALUE},
                 Constant{driver::out_of_memory, CUDA_ERROR_OUT_OF_MEMORY},
                 Constant{driver::not_initialised, CUDA_ERROR_NOT_INITIALIZED},
                 Constant{driver::invalid_context, CUDA_ERROR_INVALID_CONTEXT},
                 Constant{driver::invalid_handle, CUDA_ERROR_INVALID_HANDLE},
                 Constant{driver::not_found, CUDA_ERROR_NOT_FOUND},
                 Constant{driver::not_ready, CUDA_ERROR_NOT_READY},
                 Constant{driver::illegal_address, CUDA_ERROR_ILLEGAL_ADDRESS},
                 Constant{driver::already_registered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED},
                 Constant{driver::not_registered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED},
                 Constant{driver::launch_failed, CUDA_ERROR_LAUNCH_FAILED},
                 Constant{driver::event_blocking, CU_EVENT_BLOCKING_SYNC},
                 Constant{driver::event_without_timing, CU_EVENT_DISABLE_TIMING},
                 Constant{driver::event_default, CU_EVENT_DEFAULT},
                 Constant{driver::stream_non_blocking, CU_STREAM_NON_BLOCKING},
                 Constant{driver::register_portable, CU_MEMHOSTREGISTER_PORTABLE},
                 Constant{driver::attribute_major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
                 Constant{driver::attribute_minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
                 Constant{driver::jit_error_log, CU_JIT_ERROR_LOG_BUFFER},
                 Constant{driver::jit_error_log_bytes, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES},
                 Constant{static_cast<long>(driver::MemoryType::host), CU_MEMORYTYPE_HOST},
                 Constant{static_cast<long>(driver::MemoryType::device), CU_MEMORYTYPE_DEVICE});
    CHECK(ours == theirs);
}
