// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>

/// Dynamic loss scaling for gradients in fp16 (Micikevicius et al. 2018, arXiv:1710.03740, section
/// 3.2): the loss is multiplied by a scale that falls when gradients overflow and rises when they
/// have not for a while; a step whose gradients overflow is skipped.
namespace spillway::cpu_optim {

/// The defaults are those of torch.amp.GradScaler, which has no hysteresis and no bounds.
struct LossScaleRules {
    double initial_scale = 65536;
    double growth_factor = 2;              ///< more than 1
    double backoff_factor = 0.5;           ///< above 0 and below 1
    std::uint64_t growth_interval = 2000;  ///< steps without overflow before the scale grows
    /// Overflows that it takes to lower the scale, from the start or the last growth on; steps are
    /// skipped all the same. As DeepSpeed's.
    std::uint64_t hysteresis = 1;
    double least_scale = 0;
    double most_scale = 0x1p127;
};
/// Throws std::invalid_argument naming field, value and what is allowed.
void check(const LossScaleRules& rules);

/// All that changes from step to step; saved and restored, a scale goes on as if it had not been.
struct LossScaleState {
    float scale;
    std::uint64_t growth_tracker;   ///< steps without overflow since the scale last changed
    std::uint64_t hysteresis_left;  ///< overflows left that do not lower the scale, and one more
    std::uint64_t skipped_in_row;
    std::uint64_t skipped;

    bool operator==(const LossScaleState&) const = default;
};

enum class StepVerdict { apply, skip };

/// A value; not for several threads at once. The scale is a float, as torch's.
class LossScale {
  public:
    /// Throws as check().
    explicit LossScale(const LossScaleRules& rules);
    /// Goes on from a state. Throws std::invalid_argument if no scale under `rules` has it.
    LossScale(const LossScaleRules& rules, const LossScaleState& state);

    [[nodiscard]] float scale() const noexcept { return state_.scale; }
    /// What gradients are multiplied by: 1 / scale, rounded once.
    [[nodiscard]] float gradient_scale() const noexcept;
    [[nodiscard]] const LossScaleState& state() const noexcept { return state_; }

    /// Takes in what a step's gradients had of infinities and NaNs: what is to become of the step,
    /// and the scale of the next one.
    StepVerdict update(std::uint64_t nonfinite_gradients) noexcept;

  private:
    void grow() noexcept;
    void back_off() noexcept;

    LossScaleRules rules_;
    LossScaleState state_;
};

}  // namespace spillway::cpu_optim
