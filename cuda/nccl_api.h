// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <cstddef>

#include "cuda/driver_api.h"

/// The part of NCCL's binary interface that Spillway calls, of version 2.14 and later, declared
/// here so that it builds without NCCL. Where <nccl.h> is found, a test compares every line.
namespace spillway::cuda::nccl {

using Result = int;  ///< ncclResult_t
struct OpaqueCommunicator;
using CommunicatorHandle = OpaqueCommunicator*;  ///< ncclComm_t

/// ncclUniqueId, passed by value.
struct UniqueId {
    std::array<char, 128> bytes;
};

/// ncclConfig_t as it began, which later versions read by its size and version.
struct Config {
    std::size_t size = sizeof(Config);
    unsigned magic = 0xCAFEBEEF;
    unsigned version = 21400;
    int blocking = 1;
};

inline constexpr Result success = 0;
inline constexpr Result unhandled_cuda_error = 1;
inline constexpr Result system_error = 2;
inline constexpr Result invalid_argument = 4;
inline constexpr Result invalid_usage = 5;
inline constexpr Result remote_error = 6;
inline constexpr Result in_progress = 7;

inline constexpr int uint8 = 1;    ///< ncclUint8, of ncclDataType_t
inline constexpr int float32 = 7;  ///< ncclFloat32
inline constexpr int sum = 0;      ///< ncclSum, of ncclRedOp_t

/// X(name here, name in the library, return type, parameters).
#define SPILLWAY_NCCL_FUNCTIONS(X)                                                              \
    X(error_text, ncclGetErrorString, const char*, (Result))                                    \
    X(last_error, ncclGetLastError, const char*, (CommunicatorHandle))                          \
    X(unique_id, ncclGetUniqueId, Result, (UniqueId*))                                          \
    X(join, ncclCommInitRankConfig, Result, (CommunicatorHandle*, int, UniqueId, int, Config*)) \
    X(state, ncclCommGetAsyncError, Result, (CommunicatorHandle, Result*))                      \
    X(abort, ncclCommAbort, Result, (CommunicatorHandle))                                       \
    X(destroy, ncclCommDestroy, Result, (CommunicatorHandle))                                   \
    X(all_gather, ncclAllGather, Result,                                                        \
      (const void*, void*, std::size_t, int, CommunicatorHandle, driver::StreamHandle))         \
    X(reduce_scatter, ncclReduceScatter, Result,                                                \
      (const void*, void*, std::size_t, int, int, CommunicatorHandle, driver::StreamHandle))    \
    X(all_reduce, ncclAllReduce, Result,                                                        \
      (const void*, void*, std::size_t, int, int, CommunicatorHandle, driver::StreamHandle))    \
    X(broadcast, ncclBroadcast, Result,                                                         \
      (const void*, void*, std::size_t, int, int, CommunicatorHandle, driver::StreamHandle))

/// The functions as found in a library.
struct Functions {
#define SPILLWAY_NCCL_POINTER(name, symbol, result, parameters) result(*name) parameters = nullptr;
    SPILLWAY_NCCL_FUNCTIONS(SPILLWAY_NCCL_POINTER)
#undef SPILLWAY_NCCL_POINTER
};

}  // namespace spillway::cuda::nccl
