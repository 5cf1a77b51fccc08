// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cmath>
#include <limits>

namespace spillway::cpu_optim::detail {

/// Which NaN an operation passes on depends on the order the compiler gave its operands.
template <typename Float>
[[nodiscard]] Float with_one_nan(Float value) {
    return std::isnan(value) ? std::numeric_limits<Float>::quiet_NaN() : value;
}

}  // namespace spillway::cpu_optim::detail
