// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu_optim/elementwise.h"

namespace spillway::cpu_optim::detail {

/// An ElementwiseRun in bare pointers, all that a kernel may use.
struct RunPointers {
    std::size_t elements;
    float* master;
    std::uint16_t* weight;
    std::int16_t* residue;
    float* state[most_state_planes];
    const void* gradient;
    GradientType gradient_type;
};

/// How far a kernel came, and how many of the masters on the way are as update_run counts them.
struct Progress {
    std::size_t elements;
    std::size_t nonfinite;
};

}  // namespace spillway::cpu_optim::detail
