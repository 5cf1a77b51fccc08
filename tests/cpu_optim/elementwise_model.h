// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <variant>

#include "cpu_optim/elementwise_reference.h"
#include "tests/cpu_optim/bounded.h"

namespace spillway::cpu_optim::testing {

/// Every rule as its paper has it, with std::pow and bias corrections where the paper puts them,
/// and beside each value the bound of what a float computation of it may be off.
class ElementwiseModel {
  public:
    ElementwiseModel(const HyperParameters& hyper, const ElementwiseElement& start)
        : hyper_{hyper}, w_{exactly(start.master)} {
        for (std::size_t plane = 0; plane < state_.size(); ++plane)
            state_[plane] = exactly(start.state[plane]);
    }

    void step(std::uint64_t t, double gradient, double scale) {
        std::visit(
            [&](const auto& hyper) {
                const Bounded g = exactly(gradient) * narrowed(scale);
                apply(hyper, t, hyper.objective == Objective::maximise ? -g : g);
            },
            hyper_);
    }

    /// The worst of the weight and of the state this rule uses.
    [[nodiscard]] double distance_of(const ElementwiseElement& element) const {
        double worst = distance(element.master, w_);
        for (std::size_t plane = 0; plane < state_planes(hyper_); ++plane)
            worst = std::max(worst, distance(element.state[plane], state_[plane]));
        return worst;
    }
    [[nodiscard]] const Bounded& w() const { return w_; }
    [[nodiscard]] const Bounded& state(std::size_t plane) const { return state_.at(plane); }

  private:
    static Bounded power(double base, std::uint64_t exponent) {
        return exactly(std::pow(base, static_cast<double>(exponent)));
    }
    [[nodiscard]] Bounded with_l2(Bounded g, double weight_decay) const {
        return weight_decay != 0 ? g + narrowed(weight_decay) * w_ : g;
    }
    void decay(double learning_rate, double weight_decay) {
        w_ = w_ - narrowed(learning_rate * weight_decay) * w_;
    }

    static double nadam_mu(const AdamHyperParameters& hyper, std::uint64_t t) {
        const double decayed = std::pow(0.96, static_cast<double>(t) * hyper.momentum_decay);
        return hyper.beta1 * (1 - 0.5 * decayed);
    }
    /// Dozat's m-bar over the product of 1 - mu, with torch's 1 - mu(t) for the gradient.
    static Bounded nadam_moment(const AdamHyperParameters& hyper, std::uint64_t t, Bounded m,
                                Bounded g) {
        double product = 1;
        for (std::uint64_t i = 1; i <= t; ++i)
            product *= nadam_mu(hyper, i);
        const double next = nadam_mu(hyper, t + 1);
        return narrowed(next / (1 - product * next)) * m +
               narrowed((1 - nadam_mu(hyper, t)) / (1 - product)) * g;
    }

    void apply(const AdamHyperParameters& hyper, std::uint64_t t, Bounded g) {
        auto& [m, v, largest_v] = state_;
        if (hyper.decay == WeightDecay::decoupled)
            decay(hyper.learning_rate, hyper.weight_decay);
        else
            g = with_l2(g, hyper.weight_decay);
        m = mixed(m, g, 1 - hyper.beta1);
        v = narrowed(hyper.beta2) * v + narrowed(1 - hyper.beta2) * g * g;
        largest_v = hyper.amsgrad == Amsgrad::on ? larger(largest_v, v) : v;
        const Bounded m_hat = hyper.nesterov == Nesterov::on
                                  ? nadam_moment(hyper, t, m, g)
                                  : m / narrowed(1 - power(hyper.beta1, t).value);
        const Bounded v_hat = largest_v / narrowed(1 - power(hyper.beta2, t).value);
        w_ = w_ - narrowed(hyper.learning_rate) * m_hat / (root(v_hat) + narrowed(hyper.epsilon));
    }

    void apply(const SgdHyperParameters& hyper, std::uint64_t t, Bounded g) {
        auto& buffer = state_[0];
        g = with_l2(g, hyper.weight_decay);
        Bounded direction = g;
        if (hyper.momentum != 0) {
            buffer =
                t == 1 ? g : narrowed(hyper.momentum) * buffer + narrowed(1 - hyper.dampening) * g;
            direction =
                hyper.nesterov == Nesterov::on ? g + narrowed(hyper.momentum) * buffer : buffer;
        }
        w_ = w_ - narrowed(hyper.learning_rate) * direction;
    }

    void apply(const AdagradHyperParameters& hyper, std::uint64_t t, Bounded g) {
        auto& sum = state_[0];
        g = with_l2(g, hyper.weight_decay);
        if (t == 1)
            sum = sum + narrowed(hyper.initial_accumulator_value);
        sum = sum + g * g;
        const double rate =
            hyper.learning_rate / (1 + (static_cast<double>(t) - 1) * hyper.learning_rate_decay);
        w_ = w_ - narrowed(rate) * g / (root(sum) + narrowed(hyper.epsilon));
    }

    void apply(const LionHyperParameters& hyper, std::uint64_t /*t*/, Bounded g) {
        auto& m = state_[0];
        const Bounded c = narrowed(hyper.beta1) * m + narrowed(1 - hyper.beta1) * g;
        decay(hyper.learning_rate, hyper.weight_decay);
        Bounded change = narrowed(c.value > 0   ? hyper.learning_rate
                                  : c.value < 0 ? -hyper.learning_rate
                                                : 0);
        if (std::abs(c.value) <= c.error)  // the float computation may find the other sign
            change.error += 2 * hyper.learning_rate;
        w_ = w_ - change;
        m = narrowed(hyper.beta2) * m + narrowed(1 - hyper.beta2) * g;
    }

    void apply(const RmspropHyperParameters& hyper, std::uint64_t /*t*/, Bounded g) {
        auto& square = state_[0];
        g = with_l2(g, hyper.weight_decay);
        square = narrowed(hyper.alpha) * square + narrowed(1 - hyper.alpha) * g * g;
        Bounded variance = square;
        if (hyper.centred == Centred::on) {
            auto& mean = state_[hyper.momentum != 0 ? 2 : 1];
            mean = mixed(mean, g, 1 - hyper.alpha);
            variance = square - mean * mean;
        }
        const Bounded change = g / (root(variance) + narrowed(hyper.epsilon));
        if (hyper.momentum == 0) {
            w_ = w_ - narrowed(hyper.learning_rate) * change;
            return;
        }
        auto& buffer = state_[1];
        buffer = narrowed(hyper.momentum) * buffer + change;
        w_ = w_ - narrowed(hyper.learning_rate) * buffer;
    }

    HyperParameters hyper_;
    Bounded w_;
    std::array<Bounded, most_state_planes> state_;
};

}  // namespace spillway::cpu_optim::testing
