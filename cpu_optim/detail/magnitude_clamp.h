// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>

namespace spillway::cpu_optim::detail {

/// A clamp in the integers that the gradients' bits are: of two numbers of one sign, the one with
/// the larger magnitude bits is further from 0, and NaNs have larger ones than infinity.
template <typename Bits>
struct MagnitudeClamp {
    Bits most;
    Bits infinity;
};

/// How far a kernel came, and how many values it has changed.
struct Clamped {
    std::size_t elements;
    std::size_t changed;
};

}  // namespace spillway::cpu_optim::detail
