// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu_optim/float_formats.h"
#include "cpu_optim/gradient_scan.h"

namespace spillway::cpu_optim::detail {

/// Element `i` of `gradient`, widened exactly.
[[nodiscard]] inline float gradient_element(const void* gradient, GradientType type,
                                            std::size_t i) noexcept {
    switch (type) {
        case GradientType::fp32:
            return static_cast<const float*>(gradient)[i];
        case GradientType::bf16:
            return from_bf16(static_cast<const std::uint16_t*>(gradient)[i]);
        case GradientType::fp16:
            return from_fp16(static_cast<const std::uint16_t*>(gradient)[i]);
    }
    return 0;
}

}  // namespace spillway::cpu_optim::detail
