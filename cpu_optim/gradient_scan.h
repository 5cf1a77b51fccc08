// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu_optim/isa.h"

namespace spillway::cpu_optim {

enum class GradientType : std::uint8_t { fp32, bf16, fp16 };
[[nodiscard]] constexpr std::size_t gradient_bytes(GradientType type) noexcept {
    return type == GradientType::fp32 ? 4 : 2;
}

/// What the clip norm and the skip rule need to know of a tile of gradients.
struct GradientScan {
    double sum_of_squares = 0;    ///< of every element, in double, in the fixed shape below
    std::uint64_t nonfinite = 0;  ///< elements that are infinite or NaN
};

/// Scans one tile. Element i is squared in double and added to lane i % 16; the lanes are then
/// added pairwise (8 + 8, 4 + 4, 2 + 2, 1 + 1): the same bits on every Isa. Zeros at the end change
/// nothing, so a tile may be scanned without its padding.
[[nodiscard]] GradientScan scan_gradient(Isa isa, std::span<const float> tile);
/// The same of `elements` gradients of `type` at `tile`, each widened exactly to fp32.
[[nodiscard]] GradientScan scan_gradient(Isa isa, const void* tile, GradientType type,
                                         std::size_t elements);

/// into[i] += from[i]. All spans have one length.
void add_gradient(Isa isa, std::span<float> into, std::span<const float> from);

}  // namespace spillway::cpu_optim
