// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/nearby_library.h"

#include <catch2/catch.hpp>

using namespace spillway::cuda;

TEST_CASE("libraries tell their versions, or the loader why they are not there") {
    CHECK(inspect_nccl(SPILLWAY_CUDA_STANDIN).version == "2.28.9");
    CHECK(inspect_nccl(SPILLWAY_CUDA_STANDIN).refusal.empty());
    const auto none = inspect_nccl("/nowhere/libnccl.so.2");
    CHECK(none.version.empty());
    CHECK_THAT(none.refusal, Catch::Contains("/nowhere/libnccl.so.2"));
    CHECK(inspect_nccl("libm.so.6").version == "unknown");
}

TEST_CASE("cuFile without its part in the kernel is not what it seems") {
    const auto whole = inspect_cufile(SPILLWAY_CUDA_STANDIN, "/proc/self/stat");
    CHECK(whole.version == "1.15.0");
    CHECK(whole.refusal.empty());
    const auto half = inspect_cufile(SPILLWAY_CUDA_STANDIN, "/nowhere/version");
    CHECK(half.version == "1.15.0");
    CHECK_THAT(half.refusal,
               Catch::Contains("/nowhere/version") && Catch::Contains("through host memory"));
    CHECK(inspect_cufile("/nowhere/libcufile.so.0").version.empty());
}
