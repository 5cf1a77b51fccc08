// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/detail/nadam_momentum.h"

#include "cpu_optim/detail/exponential.h"
#include "cpu_optim/detail/power.h"

namespace spillway::cpu_optim::detail {
namespace {

constexpr double log_of_096 = -0.040821994520255166;  // nearest to ln 0.96

/// 1 + r + ... + r^(terms - 1) by doubling, exact for r = 1 and without cancellation near it.
double geometric_sum(double r, std::uint64_t terms) {
    double sum = 0;
    double block = 1;  // of the next power of two of terms
    for (; terms != 0; terms >>= 1) {
        if ((terms & 1) != 0)
            sum = block + r * sum;
        block += r * block;
        r *= r;
    }
    return sum;
}

}  // namespace

double nadam_momentum(double beta1, double momentum_decay, std::uint64_t step) {
    const double exponent = static_cast<double>(step) * momentum_decay;
    return beta1 * (1 - exponential(exponent * log_of_096) / 2);
}

// With q = 0.96^momentum_decay: ln of the product of 1 - q^i / 2 over i = 1 ... step is, by the
// series of ln(1 - x), minus the sum over k of (q^k + q^2k + ... + q^(step k)) / (k 2^k), and the
// sum inside is geometric. The terms left out are below 2^-56 of the first.
double nadam_momentum_product(double beta1, double momentum_decay, std::uint64_t step) {
    constexpr int terms = 52;
    double sum = 0;
    double half_power = 1;
    for (int k = 1; k <= terms; ++k) {
        half_power /= 2;
        const double q = exponential(k * momentum_decay * log_of_096);
        if (q == 0)
            break;
        sum += q * geometric_sum(q, step) * half_power / k;
    }
    return power(beta1, step) * exponential(-sum);
}

}  // namespace spillway::cpu_optim::detail
