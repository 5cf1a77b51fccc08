// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/detail/exponential.h"

#include <cmath>

#include "cpu_optim/detail/power.h"

namespace spillway::cpu_optim::detail {
namespace {

/// ln x for x >= 1: of x's fraction f by 2 (z + z^3 / 3 + z^5 / 5 + ...), z = (f - 1) / (f + 1),
/// which is below 0.18.
double natural_log(double x) {
    constexpr double log_of_2 = 0.6931471805599453;
    constexpr double half_of_root_2 = 0.7071067811865476;
    int exponent = 0;
    double fraction = std::frexp(x, &exponent);
    if (fraction < half_of_root_2) {
        fraction *= 2;
        --exponent;
    }
    const double z = (fraction - 1) / (fraction + 1);
    double series = 0;
    for (int power_of_z = 25; power_of_z > 0; power_of_z -= 2)
        series = 1.0 / power_of_z + series * z * z;
    return exponent * log_of_2 + 2 * z * series;
}

}  // namespace

double exponential(double x) {
    constexpr double inverse_e = 0.36787944117144233;
    constexpr double underflow = -800;
    if (!(x > underflow))
        return 0;
    const auto whole = static_cast<std::uint64_t>(-x);
    const double rest = x + static_cast<double>(whole);  // above -1, so by its series
    double series = 1;
    for (int term = 20; term > 0; --term)
        series = 1 + series * rest / term;
    return power(inverse_e, whole) * series;
}

double step_power(std::uint64_t step, double exponent) {
    return exponential(exponent * natural_log(static_cast<double>(step)));
}

}  // namespace spillway::cpu_optim::detail
