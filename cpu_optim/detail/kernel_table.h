// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include "cpu_optim/isa.h"

// Include this before <hwy/foreach_target.h>. Highway's MulAdd is not fused below AVX2, so those
// targets could not give the reference's bits; ALL_ATTAINABLE compiles AVX2 and AVX-512 whatever
// -march says. Every kernel stands between HWY_BEFORE_NAMESPACE and HWY_AFTER_NAMESPACE in an
// unnamed namespace and uses raw pointers only: an inline function of the standard library
// instantiated in there could be the copy the linker keeps for callers on older processors.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#define HWY_COMPILE_ALL_ATTAINABLE

/// True while foreach_target.h compiles a source for a target that has kernels.
#define SPILLWAY_VECTOR_TARGET ((HWY_TARGET & (HWY_AVX2 | HWY_AVX3)) != 0)

#if defined(__x86_64__)
#define SPILLWAY_KERNEL_TABLE(kernel) \
    { &N_AVX2::kernel, &N_AVX3::kernel }
/// Of update_rule<Loop>() (elementwise_dispatch-inl.h).
#define SPILLWAY_LOOP_TABLE(Loop) \
    { &N_AVX2::update_rule<N_AVX2::Loop>, &N_AVX3::update_rule<N_AVX3::Loop> }
#else
#define SPILLWAY_KERNEL_TABLE(kernel) \
    { nullptr, nullptr }
#define SPILLWAY_LOOP_TABLE(Loop) \
    { nullptr, nullptr }
#endif

namespace spillway::cpu_optim::detail {

/// Throws std::invalid_argument, naming what this machine supports, if `isa` does not run here.
void require_supported(Isa isa);

/// The compiled variants of one kernel. A kernel handles the whole vectors of a run and returns how
/// far it came; the scalar reference does the rest, and everything on Isa::scalar.
template <typename Kernel>
struct KernelTable {
    Kernel* avx2;
    Kernel* avx512;

    /// nullptr for Isa::scalar; throws as require_supported does.
    [[nodiscard]] Kernel* at(Isa isa) const {
        require_supported(isa);
        if (isa == Isa::scalar)
            return nullptr;
        return isa == Isa::avx512 ? avx512 : avx2;
    }
};

}  // namespace spillway::cpu_optim::detail
