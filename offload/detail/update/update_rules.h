// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "cpu_optim/elementwise.h"
#include "cpu_optim/layerwise.h"
#include "offload/detail/threads/update_threads.h"
#include "offload/detail/update/factored_moments.h"
#include "offload/detail/update/factored_update.h"
#include "offload/detail/update/state_update.h"
#include "offload/element_order.h"
#include "offload/factor_layout.h"
#include "offload/hyper_groups.h"
#include "offload/plan.h"

namespace spillway::offload::detail {

/// A tensor's part in one step: whose hyper-parameters it takes, which of its own steps it is, and
/// the factor on its gradient.
struct TensorStep {
    std::uint32_t group = 0;
    std::uint64_t number = 1;
    double gradient_scale = 1;
};

/// What updates of whole tensors keep beside the planes; nothing for an optimizer of one pass.
struct UpdateMemory {
    /// What the first pass of a layerwise optimizer finds: a value for each tensor's part of a
    /// tile. The number of tiles before such a part plus that of tensors before it is its own
    /// alone.
    std::vector<cpu_optim::LayerSums> measures = {};
    std::optional<FactoredMoments> factored = std::nullopt;
};
[[nodiscard]] UpdateMemory make_update_memory(const ElementOrder& order, std::size_t passes,
                                              SecondMoments moments);
/// What it takes, by the name under which a ledger has it; nothing for an optimizer of one pass.
[[nodiscard]] std::optional<MemoryItem> update_memory_item(const ElementOrder& order,
                                                           std::size_t passes,
                                                           SecondMoments moments);

/// The numbers with which one step updates each tensor.
///
/// An optimizer of whole tensors looks at every part of a tensor that has a gradient before it
/// updates any: settle(), then measure() its parts, pass after pass, then settle() and update()
/// them. Sums are added up over a tensor's tiles in order, so whatever order the parts of a turn
/// were measured in changes no bit. measure() and update() are thread-safe on different parts.
class UpdateRules {
  public:
    /// `tensors`: one for each of the order's. `memory`: of make_update_memory(), used until the
    /// end of the step. Throws std::invalid_argument as make_coefficients(), or
    /// std::logic_error if the engine was planned for another number of passes.
    UpdateRules(const ElementOrder& order, const HyperGroups& groups,
                std::span<const TensorStep> tensors, UpdateMemory& memory);

    /// Tiles of one turn: what a pass takes after one another in order, so that end_turn() comes
    /// before the next ones.
    [[nodiscard]] std::size_t tiles_at_once() const noexcept;
    /// Changes nothing of the chunk.
    void measure(cpu_optim::Isa isa, MeasuringPass at, TensorId tensor, const TilePart& part,
                 const cpu_optim::ElementwiseRun& run);
    void end_turn(UpdateThreads& threads, std::size_t pass);
    /// What pass `pass` needs of the tensors that have elements and a gradient: nothing to do for
    /// an optimizer of one pass, or twice. `has_gradient` is asked of no other, and of none for an
    /// optimizer of one pass. A norm that is not finite makes the whole tensor NaN. Throws
    /// std::runtime_error naming a tensor whose step no float holds.
    void settle(ElementOrder::TensorSpan tensors, std::size_t pass,
                const std::function<bool(TensorId)>& has_gradient);
    /// Returns as cpu_optim::update_run().
    [[nodiscard]] std::size_t update(cpu_optim::Isa isa, TensorId tensor,
                                     const cpu_optim::RoundingStream& stream, const TilePart& part,
                                     const cpu_optim::ElementwiseRun& run) const;
    [[nodiscard]] std::size_t passes() const noexcept { return passes_; }

  private:
    using Elementwise = std::vector<cpu_optim::ElementwiseCoefficients>;
    struct Layerwise {
        std::vector<cpu_optim::LayerwiseCoefficients> coefficients;
        std::vector<cpu_optim::LayerwiseHyperParameters> hyper;  ///< by the same index
        std::vector<std::optional<float>> steps;                 ///< by tensor, once settled
    };

    [[nodiscard]] cpu_optim::LayerSums& measure_of(std::uint64_t tile, TensorId tensor) const {
        return memory_.measures[static_cast<std::size_t>(tile) + tensor];
    }
    void settle_tensor(TensorId tensor, std::size_t pass);
    void settle_layer(Layerwise& rules, TensorId tensor);

    const ElementOrder& order_;
    UpdateMemory& memory_;
    std::size_t passes_;
    std::variant<Elementwise, Layerwise, FactoredUpdate> rules_;
    std::vector<std::size_t> rule_of_;  ///< by tensor: index into the coefficients
};

}  // namespace spillway::offload::detail
