// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include "cpu_optim/isa.h"

// Include this before <hwy/foreach_target.h>. Targets: AVX-512, AVX2 and Highway's static one,
// where kernels compile to the scalar path (see lanes-inl.h). Every kernel stands in an unnamed
// namespace between HWY_BEFORE_NAMESPACE and HWY_AFTER_NAMESPACE and calls no inline function of
// the standard library: an instance compiled there could be the copy the linker keeps for older
// processors.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)

#define SPILLWAY_VECTOR_TARGET ((HWY_TARGET & (HWY_AVX2 | HWY_AVX3)) != 0)

/// The variant of `kernel` for `isa`, as a function pointer.
#if defined(__x86_64__)
#define SPILLWAY_KERNEL(isa, kernel)                               \
    ((isa) == ::spillway::cpu_optim::Isa::avx512 ? &N_AVX3::kernel \
     : (isa) == ::spillway::cpu_optim::Isa::avx2 ? &N_AVX2::kernel \
                                                 : &HWY_STATIC_DISPATCH(kernel))
#else
#define SPILLWAY_KERNEL(isa, kernel) (&HWY_STATIC_DISPATCH(kernel))
#endif
