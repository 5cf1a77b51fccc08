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
#include "offload/detail/update/state_update.h"
#include "offload/element_order.h"
#include "offload/hyper_groups.h"

namespace spillway::offload::detail {

/// A tensor's part in one step: whose hyper-parameters it takes, which of its own steps it is, and
/// the factor on its gradient.
struct TensorStep {
    std::uint32_t group = 0;
    std::uint64_t number = 1;
    double gradient_scale = 1;
};

/// What the first pass of an optimizer of whole tensors finds: a value for each tensor's part of a
/// tile. The number of tiles before such a part plus that of tensors before it is its own alone.
using TensorMeasures = std::vector<cpu_optim::LayerSums>;
[[nodiscard]] inline std::size_t measures_bytes(std::uint64_t tiles, std::size_t tensors) noexcept {
    return (static_cast<std::size_t>(tiles) + tensors) * sizeof(cpu_optim::LayerSums);
}
/// Room for them; none for an optimizer of one pass.
[[nodiscard]] TensorMeasures make_measures(const ElementOrder& order, std::size_t passes);

/// The numbers with which one step updates each tensor.
///
/// An optimizer of whole tensors is measured first: measure() on every part of a tensor that has a
/// gradient, then settle() on that tensor, then update() on its parts. Sums are added up over a
/// tensor's tiles in order, so whatever order the parts were measured in changes no bit.
/// measure() and update() are thread-safe on different parts.
class UpdateRules {
  public:
    /// `tensors`: one for each of the order's. `measures`: of make_measures(), used until the end
    /// of the step. Throws std::invalid_argument as make_coefficients(), or
    /// std::logic_error if the engine was planned for another number of passes.
    UpdateRules(const ElementOrder& order, const HyperGroups& groups,
                std::span<const TensorStep> tensors, TensorMeasures& measures);

    /// Changes nothing of the chunk.
    void measure(cpu_optim::Isa isa, TensorId tensor, const TilePart& part,
                 const cpu_optim::ElementwiseRun& run);
    /// Nothing to do for an optimizer of one pass, or twice. A norm that is not finite makes the
    /// whole tensor NaN. Throws std::runtime_error naming a tensor whose step no float holds.
    void settle(TensorId tensor);
    /// Those that have elements and a gradient; `has_gradient` is asked of no other, and of none
    /// for an optimizer of one pass.
    void settle(ElementOrder::TensorSpan tensors,
                const std::function<bool(TensorId)>& has_gradient);
    /// Returns as cpu_optim::update_run().
    [[nodiscard]] std::size_t update(cpu_optim::Isa isa, TensorId tensor,
                                     const cpu_optim::RoundingStream& stream, const TilePart& part,
                                     const cpu_optim::ElementwiseRun& run) const;

  private:
    using Elementwise = std::vector<cpu_optim::ElementwiseCoefficients>;
    struct Layerwise {
        std::vector<cpu_optim::LayerwiseCoefficients> coefficients;
        std::vector<cpu_optim::LayerwiseHyperParameters> hyper;  ///< by the same index
        std::vector<std::optional<float>> steps;                 ///< by tensor, once settled
    };

    [[nodiscard]] cpu_optim::LayerSums& measure_of(std::uint64_t tile, TensorId tensor) const {
        return measures_[static_cast<std::size_t>(tile) + tensor];
    }

    const ElementOrder& order_;
    TensorMeasures& measures_;
    std::variant<Elementwise, Layerwise> rules_;
    std::vector<std::size_t> rule_of_;  ///< by tensor: index into the coefficients
};

}  // namespace spillway::offload::detail
