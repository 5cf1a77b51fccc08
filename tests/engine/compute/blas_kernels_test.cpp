// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/compute/blas_kernels.h"

#include <catch2/catch.hpp>

using namespace spillway;
using engine::faster_blas_kernels;

TEST_CASE("blas kernels: OpenBLAS tells which it runs") {
    CHECK_FALSE(engine::blas_kernels().empty());
}

TEST_CASE("blas kernels: what falls short of the processor is replaced, and nothing else") {
    CHECK(faster_blas_kernels("Prescott", cpu_optim::Isa::avx512) == "SkylakeX");
    CHECK(faster_blas_kernels("Prescott", cpu_optim::Isa::avx2) == "Haswell");
    CHECK(faster_blas_kernels("NEHALEM", cpu_optim::Isa::avx2) == "Haswell");
    CHECK_FALSE(faster_blas_kernels("Prescott", cpu_optim::Isa::scalar));
    CHECK_FALSE(faster_blas_kernels("Haswell", cpu_optim::Isa::avx2));
    CHECK_FALSE(faster_blas_kernels("Haswell", cpu_optim::Isa::avx512));
    CHECK_FALSE(faster_blas_kernels("Zen", cpu_optim::Isa::avx2));
    CHECK_FALSE(faster_blas_kernels("Sapphirerapids", cpu_optim::Isa::avx512));
    CHECK_FALSE(faster_blas_kernels("armv8", cpu_optim::Isa::scalar));
}
