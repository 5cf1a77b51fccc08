// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cmath>
#include <cstdint>

#include "cpu_optim/adamw.h"

namespace spillway::cpu_optim::testing {

/// A value in double, and how far a float computation of it may lie from it.
struct Bounded {
    double value = 0;
    double error = 0;
};

/// AdamW from the paper, in double and with std::pow, and beside it the running error bound of the
/// float computation: every rounding of a coefficient or a result adds u times its size (to first
/// order).
class AdamWModel {
  public:
    AdamWModel(double w, double m, double v) : w_{w}, m_{m}, v_{v} {}

    void step(const AdamWHyperParameters& hyper, std::uint64_t t, double gradient, double scale) {
        constexpr double u = 0x1p-24;
        constexpr double tiny = 0x1p-148;  // what a subnormal result may lose
        const double g = gradient * scale;
        const double g_error = 2 * u * std::abs(g) + tiny;

        const double a = 1 - hyper.beta1;
        const double pull = a * (g - m_.value);
        const double m = m_.value + pull;
        m_.error =
            hyper.beta1 * m_.error + a * g_error + 2 * u * std::abs(pull) + u * std::abs(m) + tiny;
        m_.value = m;

        const double kept = hyper.beta2 * v_.value;
        const double added = (1 - hyper.beta2) * g * g;
        v_.error =
            hyper.beta2 * v_.error + 2 * u * kept + 6 * u * added + u * (kept + added) + 3 * tiny;
        v_.value = kept + added;

        const auto steps = static_cast<double>(t);
        const double correction1 = 1 - std::pow(hyper.beta1, steps);
        const double correction2 = 1 - std::pow(hyper.beta2, steps);
        const double root = std::sqrt(v_.value / correction2) + hyper.epsilon;
        const double relative_v = v_.value > 0 ? v_.error / v_.value : 0;
        const double relative_root = relative_v / 2 + 4 * u;
        const double change = hyper.learning_rate / correction1 * m_.value / root;
        const double change_error = std::abs(change) * (3 * u + relative_root) +
                                    hyper.learning_rate / correction1 * m_.error / root + tiny;

        const double decayed = w_.value * (1 - hyper.learning_rate * hyper.weight_decay);
        w_.value = decayed - change;
        w_.error += 2 * u * std::abs(decayed) + change_error + u * std::abs(w_.value) + tiny;
    }

    /// How far `element` lies outside the bounds, as a multiple of them: 1 or less is right. The
    /// tenth on top is for products of errors, which the bounds leave out.
    [[nodiscard]] double distance(const AdamWElement& element) const {
        const auto ratio = [](double found, const Bounded& expected) {
            return std::abs(found - expected.value) / (1.1 * expected.error);
        };
        return std::fmax(ratio(element.master, w_),
                         std::fmax(ratio(element.m, m_), ratio(element.v, v_)));
    }

    [[nodiscard]] const Bounded& w() const { return w_; }

  private:
    Bounded w_, m_, v_;
};

}  // namespace spillway::cpu_optim::testing
