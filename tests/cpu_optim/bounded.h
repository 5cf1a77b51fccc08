// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

namespace spillway::cpu_optim::testing {

/// A value in double, and how far a float computation of it may lie from it (running error
/// analysis, Higham 2002, section 3.3): every operation passes on the errors of its operands and
/// adds one rounding of its own result. Fused operations round less often than is counted here.
struct Bounded {
    double value = 0;
    double error = 0;
};

/// Half an ulp of a float, relative, and what a subnormal result may lose.
inline double rounding(double value) {
    return 0x1p-24 * std::abs(value) + 0x1p-149;
}

/// A number that a float holds.
inline Bounded exactly(double value) {
    return {value, 0};
}
/// A coefficient, narrowed once.
inline Bounded narrowed(double value) {
    return {value, rounding(value)};
}

inline Bounded operator-(Bounded a) {
    return {-a.value, a.error};
}
inline Bounded operator+(Bounded a, Bounded b) {
    const double value = a.value + b.value;
    return {value, a.error + b.error + rounding(value)};
}
inline Bounded operator-(Bounded a, Bounded b) {
    return a + -b;
}
inline Bounded operator*(Bounded a, Bounded b) {
    const double value = a.value * b.value;
    return {value, std::abs(a.value) * b.error + std::abs(b.value) * a.error + a.error * b.error +
                       rounding(value)};
}
inline Bounded operator/(Bounded a, Bounded b) {
    const double value = a.value / b.value;
    const double least = std::abs(b.value) - b.error;
    if (least <= 0)
        return {value, std::numeric_limits<double>::infinity()};
    return {value, (a.error + std::abs(value) * b.error) / least + rounding(value)};
}
inline Bounded root(Bounded a) {
    const double value = std::sqrt(a.value);
    const double least = std::sqrt(std::max(a.value - a.error, 0.0));
    const double error = a.value > a.error ? a.error / (value + least) : std::sqrt(2 * a.error);
    return {value, error + rounding(value)};
}
inline Bounded larger(Bounded a, Bounded b) {
    return {std::max(a.value, b.value), std::max(a.error, b.error)};
}
/// (1 - share) * a + share * b, computed as a + share * (b - a).
inline Bounded mixed(Bounded a, Bounded b, double share) {
    const double value = (1 - share) * a.value + share * b.value;
    const double pull = share * (b.value - a.value);
    return {value, std::abs(1 - share) * a.error + std::abs(share) * b.error + 3 * rounding(pull) +
                       rounding(value)};
}

/// How far `found` lies outside the bound, as a multiple of it: 1 or less is right. The tenth on
/// top is for products of errors, which mixed() leaves out, and for double's own roundings.
inline double distance(double found, Bounded expected) {
    const double multiple = std::abs(found - expected.value) / (1.1 * expected.error);
    return std::isnan(multiple) ? std::numeric_limits<double>::infinity() : multiple;
}

}  // namespace spillway::cpu_optim::testing
