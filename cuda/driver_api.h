// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>

/// The part of the CUDA driver's binary interface that Spillway calls, declared here so that it
/// builds without a CUDA toolkit. Where one is found, a test compares every line with <cuda.h>.
namespace spillway::cuda::driver {

using Result = int;  ///< CUresult
using DeviceId = int;
using Address = unsigned long long;  ///< CUdeviceptr
struct OpaqueContext;
struct OpaqueEvent;
struct OpaqueFunction;
struct OpaqueModule;
struct OpaqueStream;
struct OpaqueArray;
using ContextHandle = OpaqueContext*;
using EventHandle = OpaqueEvent*;
using FunctionHandle = OpaqueFunction*;
using ModuleHandle = OpaqueModule*;
using StreamHandle = OpaqueStream*;
using ArrayHandle = OpaqueArray*;
using HostFunction = void (*)(void*);

inline constexpr Result success = 0;
inline constexpr Result invalid_value = 1;
inline constexpr Result out_of_memory = 2;
inline constexpr Result not_initialised = 3;
inline constexpr Result invalid_context = 201;
inline constexpr Result invalid_handle = 400;
inline constexpr Result not_found = 500;
inline constexpr Result not_ready = 600;
inline constexpr Result illegal_address = 700;
inline constexpr Result peer_already_enabled = 704;
inline constexpr Result already_registered = 712;
inline constexpr Result not_registered = 713;
inline constexpr Result launch_failed = 719;

inline constexpr unsigned event_blocking = 1;        ///< CU_EVENT_BLOCKING_SYNC
inline constexpr unsigned event_without_timing = 2;  ///< CU_EVENT_DISABLE_TIMING
inline constexpr unsigned event_default = 0;
inline constexpr unsigned stream_non_blocking = 1;  ///< CU_STREAM_NON_BLOCKING
inline constexpr unsigned register_portable = 1;    ///< CU_MEMHOSTREGISTER_PORTABLE
inline constexpr int attribute_major = 75;  ///< CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
inline constexpr int attribute_minor = 76;
inline constexpr int jit_error_log = 5;  ///< CU_JIT_ERROR_LOG_BUFFER
inline constexpr int jit_error_log_bytes = 6;

enum class MemoryType : unsigned { host = 1, device = 2 };  ///< CUmemorytype

/// CUDA_MEMCPY2D
struct RowsDescriptor {
    std::size_t from_x_bytes, from_y;
    MemoryType from_type;
    const void* from_host;
    Address from_device;
    ArrayHandle from_array;
    std::size_t from_pitch;
    std::size_t to_x_bytes, to_y;
    MemoryType to_type;
    void* to_host;
    Address to_device;
    ArrayHandle to_array;
    std::size_t to_pitch;
    std::size_t row_bytes, rows;
};

/// X(name here, name in the library, return type, parameters). The versioned names: an unversioned
/// symbol of the library may have an older meaning.
#define SPILLWAY_CUDA_DRIVER_FUNCTIONS(X)                                                      \
    X(init, cuInit, (unsigned))                                                                \
    X(driver_version, cuDriverGetVersion, (int*))                                              \
    X(error_name, cuGetErrorName, (Result, const char**))                                      \
    X(error_text, cuGetErrorString, (Result, const char**))                                    \
    X(device_count, cuDeviceGetCount, (int*))                                                  \
    X(device_get, cuDeviceGet, (DeviceId*, int))                                               \
    X(device_name, cuDeviceGetName, (char*, int, DeviceId))                                    \
    X(device_memory, cuDeviceTotalMem_v2, (std::size_t*, DeviceId))                            \
    X(device_attribute, cuDeviceGetAttribute, (int*, int, DeviceId))                           \
    X(device_pci_address, cuDeviceGetPCIBusId, (char*, int, DeviceId))                         \
    X(context_retain, cuDevicePrimaryCtxRetain, (ContextHandle*, DeviceId))                    \
    X(context_release, cuDevicePrimaryCtxRelease_v2, (DeviceId))                               \
    X(context_push, cuCtxPushCurrent_v2, (ContextHandle))                                      \
    X(context_pop, cuCtxPopCurrent_v2, (ContextHandle*))                                       \
    X(memory_info, cuMemGetInfo_v2, (std::size_t*, std::size_t*))                              \
    X(memory_allocate, cuMemAlloc_v2, (Address*, std::size_t))                                 \
    X(memory_free, cuMemFree_v2, (Address))                                                    \
    X(host_register, cuMemHostRegister_v2, (void*, std::size_t, unsigned))                     \
    X(host_unregister, cuMemHostUnregister, (void*))                                           \
    X(copy_to_device, cuMemcpyHtoDAsync_v2, (Address, const void*, std::size_t, StreamHandle)) \
    X(copy_to_host, cuMemcpyDtoHAsync_v2, (void*, Address, std::size_t, StreamHandle))         \
    X(copy_rows, cuMemcpy2DAsync_v2, (const RowsDescriptor*, StreamHandle))                    \
    X(peer_can_be_reached, cuDeviceCanAccessPeer, (int*, DeviceId, DeviceId))                  \
    X(peer_enable, cuCtxEnablePeerAccess, (ContextHandle, unsigned))                           \
    X(copy_from_peer, cuMemcpyPeerAsync,                                                       \
      (Address, ContextHandle, Address, ContextHandle, std::size_t, StreamHandle))             \
    X(stream_create, cuStreamCreate, (StreamHandle*, unsigned))                                \
    X(stream_destroy, cuStreamDestroy_v2, (StreamHandle))                                      \
    X(stream_synchronize, cuStreamSynchronize, (StreamHandle))                                 \
    X(stream_wait, cuStreamWaitEvent, (StreamHandle, EventHandle, unsigned))                   \
    X(launch_host, cuLaunchHostFunc, (StreamHandle, HostFunction, void*))                      \
    X(event_create, cuEventCreate, (EventHandle*, unsigned))                                   \
    X(event_destroy, cuEventDestroy_v2, (EventHandle))                                         \
    X(event_record, cuEventRecord, (EventHandle, StreamHandle))                                \
    X(event_query, cuEventQuery, (EventHandle))                                                \
    X(event_synchronize, cuEventSynchronize, (EventHandle))                                    \
    X(event_elapsed_ms, cuEventElapsedTime, (float*, EventHandle, EventHandle))                \
    X(module_load, cuModuleLoadDataEx, (ModuleHandle*, const void*, unsigned, int*, void**))   \
    X(module_unload, cuModuleUnload, (ModuleHandle))                                           \
    X(module_function, cuModuleGetFunction, (FunctionHandle*, ModuleHandle, const char*))      \
    X(launch_kernel, cuLaunchKernel,                                                           \
      (FunctionHandle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,   \
       StreamHandle, void**, void**))

/// The functions as found in a library.
struct Functions {
#define SPILLWAY_CUDA_DRIVER_POINTER(name, symbol, parameters) Result(*name) parameters = nullptr;
    SPILLWAY_CUDA_DRIVER_FUNCTIONS(SPILLWAY_CUDA_DRIVER_POINTER)
#undef SPILLWAY_CUDA_DRIVER_POINTER
};

}  // namespace spillway::cuda::driver
