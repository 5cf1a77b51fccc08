// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu_optim/isa.h"

/// Runs of values in 16 bits, from and to fp32 (float_formats.h). Bit-identical on every Isa.
namespace spillway::cpu_optim {

enum class HalfFormat : std::uint8_t { bf16, fp16 };

/// to[i] = from[i], exactly; every NaN becomes the same one. Throws std::invalid_argument on an
/// `isa` that does not run here.
void widen(Isa isa, HalfFormat format, const std::uint16_t* from, float* to, std::size_t elements);

/// to[i] = from[i] rounded to nearest, ties to even. Returns how many results are not finite.
/// Throws as widen().
std::size_t narrow(Isa isa, HalfFormat format, const float* from, std::uint16_t* to,
                   std::size_t elements);

}  // namespace spillway::cpu_optim
