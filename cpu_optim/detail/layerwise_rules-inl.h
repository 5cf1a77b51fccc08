// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors

// Compiled once per target: the guard flips with HWY_TARGET_TOGGLE instead of closing for good.
#if defined(SPILLWAY_CPU_OPTIM_LAYERWISE_RULES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_CPU_OPTIM_LAYERWISE_RULES_INL_H
#undef SPILLWAY_CPU_OPTIM_LAYERWISE_RULES_INL_H
#else
#define SPILLWAY_CPU_OPTIM_LAYERWISE_RULES_INL_H
#endif

#include <cstddef>

#include "cpu_optim/detail/master-inl.h"
#include "cpu_optim/layerwise_coefficients.h"
#include "hwy/highway.h"

// Each rule is layerwise_reference.cpp line by line.

#if SPILLWAY_VECTOR_TARGET
HWY_BEFORE_NAMESPACE();
namespace spillway::cpu_optim {
namespace HWY_NAMESPACE {
namespace {

/// A direction with, unless it is 0, the decay's share of the weight.
class WithDecay {
  public:
    HWY_INLINE explicit WithDecay(float weight_decay)
        : weight_decay_{hn::Set(FloatTag(), weight_decay)},
          decays_{hn::FirstN(FloatTag(), weight_decay != 0 ? hn::Lanes(FloatTag()) : 0)} {}

    HWY_INLINE FloatVector operator()(FloatVector direction, FloatVector w) const {
        return hn::IfThenElse(decays_, hn::MulAdd(weight_decay_, w, direction), direction);
    }

  private:
    FloatVector weight_decay_;
    hn::Mask<FloatTag> decays_;
};

class LambRule {
  public:
    using Step = LambStep;
    static constexpr std::size_t planes = 2;
    static constexpr std::size_t measured_planes = 2;  ///< that the direction is found from

    HWY_INLINE explicit LambRule(const LambCoefficients& c)
        : with_decay_{c.weight_decay},
          scale_{hn::Set(FloatTag(), c.gradient_scale)},
          one_minus_beta1_{hn::Set(FloatTag(), c.one_minus_beta1)},
          beta2_{hn::Set(FloatTag(), c.beta2)},
          one_minus_beta2_{hn::Set(FloatTag(), c.one_minus_beta2)},
          inv_bias_correction1_{hn::Set(FloatTag(), c.inv_bias_correction1)},
          inv_sqrt_bias_correction2_{hn::Set(FloatTag(), c.inv_sqrt_bias_correction2)},
          epsilon_{hn::Set(FloatTag(), c.epsilon)} {}

    /// Makes the state new, and returns the value whose square is summed.
    HWY_INLINE FloatVector prepare(FloatVector w, FloatVector* state, FloatVector gradient) const {
        auto& m = state[0];
        auto& v = state[1];
        const auto g = hn::Mul(gradient, scale_);
        m = hn::MulAdd(one_minus_beta1_, hn::Sub(g, m), m);
        v = hn::MulAdd(hn::Mul(one_minus_beta2_, g), g, hn::Mul(beta2_, v));
        return direction(w, state);
    }
    HWY_INLINE void update(FloatVector& w, FloatVector* state, FloatVector gradient,
                           FloatVector step) const {
        w = hn::NegMulAdd(step, prepare(w, state, gradient), w);
    }

  private:
    HWY_INLINE FloatVector direction(FloatVector w, const FloatVector* state) const {
        const auto root = hn::MulAdd(hn::Sqrt(state[1]), inv_sqrt_bias_correction2_, epsilon_);
        return with_decay_(hn::Div(hn::Mul(inv_bias_correction1_, state[0]), root), w);
    }

    WithDecay with_decay_;
    FloatVector scale_, one_minus_beta1_, beta2_, one_minus_beta2_, inv_bias_correction1_,
        inv_sqrt_bias_correction2_, epsilon_;
};

class LarsRule {
  public:
    using Step = LarsStep;
    static constexpr std::size_t planes = 1;
    static constexpr std::size_t measured_planes = 0;

    HWY_INLINE explicit LarsRule(const LarsCoefficients& c)
        : with_decay_{c.weight_decay},
          scale_{hn::Set(FloatTag(), c.gradient_scale)},
          momentum_{hn::Set(FloatTag(), c.momentum)} {}

    HWY_INLINE FloatVector prepare(FloatVector /*w*/, FloatVector* /*state*/,
                                   FloatVector gradient) const {
        return hn::Mul(gradient, scale_);
    }
    HWY_INLINE void update(FloatVector& w, FloatVector* state, FloatVector gradient,
                           FloatVector step) const {
        auto& buffer = state[0];
        const auto direction = with_decay_(prepare(w, state, gradient), w);
        buffer = hn::MulAdd(step, direction, hn::Mul(momentum_, buffer));
        w = hn::Sub(w, buffer);
    }

  private:
    WithDecay with_decay_;
    FloatVector scale_, momentum_;
};

/// A rule once its tensor's step is known: one of elements, as those of elementwise_rules-inl.h.
template <class Rule>
class SteppedRule {
  public:
    static constexpr std::size_t planes = Rule::planes;
    static constexpr bool weight_shows_nan = true;

    HWY_INLINE explicit SteppedRule(const typename Rule::Step& c)
        : rule_(c.coefficients), step_{hn::Set(FloatTag(), c.step)} {}

    HWY_INLINE void update(FloatVector& w, FloatVector* state, FloatVector gradient) const {
        rule_.update(w, state, gradient, step_);
    }

  private:
    Rule rule_;
    FloatVector step_;
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu_optim
HWY_AFTER_NAMESPACE();
#endif  // SPILLWAY_VECTOR_TARGET

#endif  // per-target guard
