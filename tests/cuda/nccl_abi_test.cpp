// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors

// The declarations of cuda/nccl_api.h beside those of <nccl.h>.
#include <cstddef>

#include <catch2/catch.hpp>
#include <nccl.h>

#include "cuda/nccl_api.h"
#include "tests/cuda/abi_alike.h"

namespace nccl = spillway::cuda::nccl;
namespace testing = spillway::cuda::testing;

namespace {

#define SPILLWAY_TEST_ALIKE(name, symbol, result, parameters)                               \
    static_assert(testing::Alike<decltype(nccl::Functions::name), decltype(symbol)>::value, \
                  #symbol " is declared otherwise in <nccl.h>");
SPILLWAY_NCCL_FUNCTIONS(SPILLWAY_TEST_ALIKE)

static_assert(offsetof(nccl::Config, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(nccl::Config, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(nccl::Config, blocking) == offsetof(ncclConfig_t, blocking));

}  // namespace

TEST_CASE("NCCL's constants are those of <nccl.h>") {
    const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
    CHECK(nccl::Config().magic == theirs.magic);
    CHECK(nccl::Config().version <= theirs.version);
    CHECK(nccl::success == ncclSuccess);
    CHECK(nccl::unhandled_cuda_error == ncclUnhandledCudaError);
    CHECK(nccl::system_error == ncclSystemError);
    CHECK(nccl::invalid_argument == ncclInvalidArgument);
    CHECK(nccl::invalid_usage == ncclInvalidUsage);
    CHECK(nccl::remote_error == ncclRemoteError);
    CHECK(nccl::in_progress == ncclInProgress);
    CHECK(nccl::uint8 == ncclUint8);
    CHECK(nccl::float32 == ncclFloat32);
    CHECK(nccl::sum == ncclSum);
}
