// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>

namespace spillway::cpu_optim::detail {

/// e^x for x <= 0: the same bits with any library of functions, as power() has.
[[nodiscard]] double exponential(double x);

/// step^exponent for a step of 1 or more and an exponent of 0 or less.
[[nodiscard]] double step_power(std::uint64_t step, double exponent);

}  // namespace spillway::cpu_optim::detail
