// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cpu_optim/adafactor.h"
#include "offload/detail/update/factored_moments.h"
#include "offload/detail/update/state_update.h"
#include "offload/element_order.h"

namespace spillway::offload::detail {

/// Which pass looks at a tile, from 0, and its place among the tiles of the turn.
struct MeasuringPass {
    std::size_t pass = 0;
    std::size_t place = 0;
};

/// One step of Adafactor. Pass 0 takes squares of rows and columns (of a vector it moves the second
/// moment); then the factors are moved; pass 1 takes the updates' squares; then a tensor's step is
/// known, and pass 2 moves the weights. measure() and update() are thread-safe on different parts.
class FactoredUpdate {
  public:
    /// What a tensor's step is made from.
    struct Rule {
        cpu_optim::AdafactorCoefficients coefficients;
        cpu_optim::AdafactorHyperParameters hyper;
        std::uint64_t number = 1;  ///< of the tensor's own steps
    };
    /// `rule_of`: by tensor, an index into the rules.
    FactoredUpdate(const ElementOrder& order, FactoredMoments& moments, std::vector<Rule> rules,
                   std::vector<std::size_t> rule_of);

    void measure(cpu_optim::Isa isa, MeasuringPass at, TensorId tensor, const TilePart& part,
                 const cpu_optim::ElementwiseRun& run);
    [[nodiscard]] std::size_t tiles_at_once() const noexcept { return moments_.places(); }
    /// After each turn of tiles.
    void end_turn(UpdateThreads& threads, std::size_t pass);
    /// What pass `pass` needs of a tensor with elements that had those before. Nothing to do twice.
    /// Throws std::invalid_argument if no float holds its step.
    void settle(TensorId tensor, std::size_t pass);
    /// Returns as cpu_optim::apply_factored().
    [[nodiscard]] std::size_t update(cpu_optim::Isa isa, TensorId tensor, const TilePart& part,
                                     const cpu_optim::ElementwiseRun& run) const;

  private:
    enum class Settled : std::uint8_t { nothing, factors, step };

    [[nodiscard]] const Rule& rule(TensorId tensor) const { return rules_[rule_of_[tensor]]; }
    [[nodiscard]] cpu_optim::Factors factors(TensorId tensor, std::uint64_t matrix) const;
    void sum_squares(cpu_optim::Isa isa, std::size_t place, TensorId tensor, const TilePart& part,
                     const cpu_optim::ElementwiseRun& run);
    void move_variance(cpu_optim::Isa isa, TensorId tensor, const TilePart& part,
                       const cpu_optim::ElementwiseRun& run);
    void move_factors(TensorId tensor);
    void find_step(TensorId tensor);

    const ElementOrder& order_;
    FactoredMoments& moments_;
    std::vector<Rule> rules_;
    std::vector<std::size_t> rule_of_;
    std::vector<Settled> settled_;  ///< by tensor
    std::vector<float> steps_;      ///< by tensor, once settled
};

}  // namespace spillway::offload::detail
