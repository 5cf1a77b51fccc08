// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors

// Compiled once per target: the guard flips with HWY_TARGET_TOGGLE instead of closing for good.
#if defined(SPILLWAY_CPU_OPTIM_ELEMENTWISE_RULES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_CPU_OPTIM_ELEMENTWISE_RULES_INL_H
#undef SPILLWAY_CPU_OPTIM_ELEMENTWISE_RULES_INL_H
#else
#define SPILLWAY_CPU_OPTIM_ELEMENTWISE_RULES_INL_H
#endif

#include <cstddef>

#include "cpu_optim/detail/split_master-inl.h"
#include "cpu_optim/elementwise_coefficients.h"
#include "hwy/highway.h"

// Each rule is elementwise_reference.cpp line by line. What changes the planes of state, and the
// kind of Adam's decay, is a template parameter; any other switch selects between two values by a
// mask that is the same in all lanes, which is exact whatever the value not selected is.
// `weight_shows_nan`: a NaN in any plane of the new state makes the new weight one, whatever the
// other values are, so that state need not be looked at where the weight is a number.

#if SPILLWAY_VECTOR_TARGET
HWY_BEFORE_NAMESPACE();
namespace spillway::cpu_optim {
namespace HWY_NAMESPACE {
namespace {

using FloatMask = hn::Mask<FloatTag>;

HWY_INLINE FloatVector all_lanes(float value) {
    return hn::Set(FloatTag(), value);
}

HWY_INLINE FloatMask all_lanes_if(bool is_on) {
    return hn::FirstN(FloatTag(), is_on ? hn::Lanes(FloatTag()) : 0);
}

/// A gradient scaled and, unless l2 is 0, with the weight's share.
class ScaledGradient {
  public:
    HWY_INLINE ScaledGradient(float scale, float l2)
        : scale_{all_lanes(scale)}, l2_{all_lanes(l2)}, has_l2_{all_lanes_if(l2 != 0)} {}

    HWY_INLINE FloatVector without_l2(FloatVector gradient) const {
        return hn::Mul(gradient, scale_);
    }
    HWY_INLINE FloatVector operator()(FloatVector gradient, FloatVector w) const {
        const auto g = without_l2(gradient);
        return hn::IfThenElse(has_l2_, hn::MulAdd(l2_, w, g), g);
    }

  private:
    FloatVector scale_, l2_;
    FloatMask has_l2_;
};

template <Term decoupled_decay, Term amsgrad, Term nesterov>
class AdamRule {
  public:
    static constexpr std::size_t planes = amsgrad == Term::on ? 3 : 2;
    static constexpr bool weight_shows_nan = true;

    HWY_INLINE explicit AdamRule(const AdamCoefficients& c)
        : scaled_{c.gradient_scale, c.l2},
          decay_{all_lanes(c.decay)},
          one_minus_beta1_{all_lanes(c.one_minus_beta1)},
          beta2_{all_lanes(c.beta2)},
          one_minus_beta2_{all_lanes(c.one_minus_beta2)},
          inv_sqrt_bias_correction2_{all_lanes(c.inv_sqrt_bias_correction2)},
          epsilon_{all_lanes(c.epsilon)},
          step_size_{all_lanes(c.step_size)},
          gradient_step_{all_lanes(c.gradient_step)} {}

    HWY_INLINE void update(FloatVector& w, FloatVector* state, FloatVector gradient) const {
        move_weight(w, state, gradient, update_state(w, state, gradient));
    }
    /// The first half of an update; returns what the second one divides by.
    HWY_INLINE FloatVector update_state(FloatVector w, FloatVector* state,
                                        FloatVector gradient) const {
        auto &m = state[0], &v = state[1];
        const auto g = with_l2(gradient, w);
        m = hn::MulAdd(one_minus_beta1_, hn::Sub(g, m), m);
        v = hn::MulAdd(hn::Mul(one_minus_beta2_, g), g, hn::Mul(beta2_, v));
        auto used_v = v;
        if constexpr (amsgrad == Term::on) {
            auto& largest_v = state[2];
            const auto keeps = hn::Or(hn::IsNaN(largest_v), hn::Gt(largest_v, v));
            largest_v = hn::IfThenElse(keeps, largest_v, v);
            used_v = largest_v;
        }
        return hn::MulAdd(hn::Sqrt(used_v), inv_sqrt_bias_correction2_, epsilon_);
    }
    HWY_INLINE void move_weight(FloatVector& w, const FloatVector* state, FloatVector gradient,
                                FloatVector root) const {
        auto direction = hn::Mul(step_size_, state[0]);
        if constexpr (nesterov == Term::on)
            direction =
                hn::MulAdd(step_size_, state[0], hn::Mul(gradient_step_, with_l2(gradient, w)));
        if constexpr (decoupled_decay == Term::on)
            w = hn::NegMulAdd(decay_, w, w);
        w = hn::Sub(w, hn::Div(direction, root));
    }

  private:
    HWY_INLINE FloatVector with_l2(FloatVector gradient, FloatVector w) const {
        return decoupled_decay == Term::on ? scaled_.without_l2(gradient) : scaled_(gradient, w);
    }

    ScaledGradient scaled_;
    FloatVector decay_, one_minus_beta1_, beta2_, one_minus_beta2_, inv_sqrt_bias_correction2_,
        epsilon_, step_size_, gradient_step_;
};

template <Term has_buffer>
class SgdRule {
  public:
    static constexpr std::size_t planes = has_buffer == Term::on ? 1 : 0;
    static constexpr bool weight_shows_nan = true;

    HWY_INLINE explicit SgdRule(const SgdCoefficients& c)
        : scaled_{c.gradient_scale, c.l2},
          starts_{all_lanes_if(c.buffer == MomentumBuffer::starts)},
          is_nesterov_{all_lanes_if(c.nesterov == Term::on)},
          momentum_{all_lanes(c.momentum)},
          one_minus_dampening_{all_lanes(c.one_minus_dampening)},
          learning_rate_{all_lanes(c.learning_rate)} {}

    HWY_INLINE void update(FloatVector& w, FloatVector* state, FloatVector gradient) const {
        const auto g = scaled_(gradient, w);
        auto direction = g;
        if constexpr (has_buffer == Term::on) {
            auto& buffer = state[0];
            const auto continued = hn::MulAdd(one_minus_dampening_, g, hn::Mul(momentum_, buffer));
            buffer = hn::IfThenElse(starts_, g, continued);
            direction = hn::IfThenElse(is_nesterov_, hn::MulAdd(momentum_, buffer, g), buffer);
        }
        w = hn::NegMulAdd(learning_rate_, direction, w);
    }

  private:
    ScaledGradient scaled_;
    FloatMask starts_, is_nesterov_;
    FloatVector momentum_, one_minus_dampening_, learning_rate_;
};

class AdagradRule {
  public:
    static constexpr std::size_t planes = 1;
    static constexpr bool weight_shows_nan = true;

    HWY_INLINE explicit AdagradRule(const AdagradCoefficients& c)
        : scaled_{c.gradient_scale, c.l2},
          added_accumulator_{all_lanes(c.added_accumulator)},
          epsilon_{all_lanes(c.epsilon)},
          step_size_{all_lanes(c.step_size)} {}

    HWY_INLINE void update(FloatVector& w, FloatVector* state, FloatVector gradient) const {
        auto& sum = state[0];
        const auto g = scaled_(gradient, w);
        sum = hn::MulAdd(g, g, hn::Add(sum, added_accumulator_));
        w = hn::Sub(w, hn::Div(hn::Mul(step_size_, g), hn::Add(hn::Sqrt(sum), epsilon_)));
    }

  private:
    ScaledGradient scaled_;
    FloatVector added_accumulator_, epsilon_, step_size_;
};

class LionRule {
  public:
    static constexpr std::size_t planes = 1;
    /// The weight has the sign of one mean of the moment; the new moment is another.
    static constexpr bool weight_shows_nan = false;

    HWY_INLINE explicit LionRule(const LionCoefficients& c)
        : gradient_scale_{all_lanes(c.gradient_scale)},
          decay_{all_lanes(c.decay)},
          beta1_{all_lanes(c.beta1)},
          one_minus_beta1_{all_lanes(c.one_minus_beta1)},
          beta2_{all_lanes(c.beta2)},
          one_minus_beta2_{all_lanes(c.one_minus_beta2)},
          learning_rate_{all_lanes(c.learning_rate)} {}

    HWY_INLINE void update(FloatVector& w, FloatVector* state, FloatVector gradient) const {
        auto& m = state[0];
        const auto g = hn::Mul(gradient, gradient_scale_);
        w = hn::NegMulAdd(decay_, w, w);
        const auto direction = hn::MulAdd(one_minus_beta1_, g, hn::Mul(beta1_, m));
        const auto magnitude = hn::Abs(direction);
        const auto moves = hn::Gt(magnitude, hn::Zero(FloatTag()));
        const auto change = hn::CopySign(learning_rate_, direction);
        w = hn::Sub(w, hn::IfThenElse(moves, change, magnitude));
        m = hn::MulAdd(one_minus_beta2_, g, hn::Mul(beta2_, m));
    }

  private:
    FloatVector gradient_scale_, decay_, beta1_, one_minus_beta1_, beta2_, one_minus_beta2_,
        learning_rate_;
};

template <Term has_momentum, Term centred>
class RmspropRule {
  public:
    static constexpr std::size_t buffer_plane = 1;
    static constexpr std::size_t mean_plane = has_momentum == Term::on ? 2 : 1;
    static constexpr std::size_t planes = mean_plane + (centred == Term::on ? 1 : 0);
    static constexpr bool weight_shows_nan = true;

    HWY_INLINE explicit RmspropRule(const RmspropCoefficients& c)
        : scaled_{c.gradient_scale, c.l2},
          alpha_{all_lanes(c.alpha)},
          one_minus_alpha_{all_lanes(c.one_minus_alpha)},
          epsilon_{all_lanes(c.epsilon)},
          momentum_{all_lanes(c.momentum)},
          learning_rate_{all_lanes(c.learning_rate)} {}

    HWY_INLINE void update(FloatVector& w, FloatVector* state, FloatVector gradient) const {
        auto& square = state[0];
        const auto g = scaled_(gradient, w);
        square = hn::MulAdd(hn::Mul(one_minus_alpha_, g), g, hn::Mul(alpha_, square));
        auto variance = square;
        if constexpr (centred == Term::on) {
            auto& mean = state[mean_plane];
            mean = hn::MulAdd(one_minus_alpha_, hn::Sub(g, mean), mean);
            variance = hn::NegMulAdd(mean, mean, square);
        }
        const auto root = hn::Add(hn::Sqrt(variance), epsilon_);
        if constexpr (has_momentum == Term::on) {
            auto& buffer = state[buffer_plane];
            buffer = hn::MulAdd(momentum_, buffer, hn::Div(g, root));
            w = hn::NegMulAdd(learning_rate_, buffer, w);
        } else {
            w = hn::Sub(w, hn::Div(hn::Mul(learning_rate_, g), root));
        }
    }

  private:
    ScaledGradient scaled_;
    FloatVector alpha_, one_minus_alpha_, epsilon_, momentum_, learning_rate_;
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu_optim
HWY_AFTER_NAMESPACE();
#endif  // SPILLWAY_VECTOR_TARGET

#endif  // per-target guard
