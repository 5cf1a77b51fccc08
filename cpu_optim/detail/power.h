// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>

namespace spillway::cpu_optim::detail {

/// base^exponent by repeated squaring: the same bits with any library of functions.
[[nodiscard]] constexpr double power(double base, std::uint64_t exponent) {
    double result = 1;
    for (; exponent != 0; exponent >>= 1) {
        if ((exponent & 1) != 0)
            result *= base;
        base *= base;
    }
    return result;
}

}  // namespace spillway::cpu_optim::detail
