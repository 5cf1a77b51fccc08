// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "cpu_optim/adafactor.h"
#include "cpu_optim/elementwise.h"
#include "cpu_optim/layerwise.h"
#include "cpu_optim/state_format.h"
#include "offload/factor_layout.h"

namespace spillway::offload {

/// The hyper-parameters of one optimizer, group by group. A value; made of a list of one family, so
/// that no list mixes two.
class HyperGroups {
  public:
    using Elementwise = std::vector<cpu_optim::HyperParameters>;
    using Layerwise = std::vector<cpu_optim::LayerwiseHyperParameters>;
    using Factored = std::vector<cpu_optim::AdafactorHyperParameters>;

    HyperGroups() = default;
    HyperGroups(Elementwise groups) : groups_(std::move(groups)) {}
    HyperGroups(Layerwise groups) : groups_(std::move(groups)) {}
    HyperGroups(Factored groups) : groups_(std::move(groups)) {}
    HyperGroups(std::initializer_list<cpu_optim::HyperParameters> groups)
        : groups_(Elementwise(groups)) {}
    HyperGroups(std::initializer_list<cpu_optim::LayerwiseHyperParameters> groups)
        : groups_(Layerwise(groups)) {}
    HyperGroups(std::initializer_list<cpu_optim::AdafactorHyperParameters> groups)
        : groups_(Factored(groups)) {}

    [[nodiscard]] std::size_t size() const noexcept;
    /// Of all groups together: state planes that serve each of them.
    [[nodiscard]] cpu_optim::OptimizerNeeds needs() const noexcept;
    [[nodiscard]] SecondMoments second_moments() const noexcept;
    /// "AdamW", "LAMB": for messages.
    [[nodiscard]] std::string_view optimizer_name(std::size_t group) const;
    /// What the planes of `group` hold, as cpu_optim::moment_kinds().
    [[nodiscard]] std::array<cpu_optim::MomentKind, cpu_optim::most_lossy_planes> moment_kinds(
        std::size_t group) const;

    /// Throws std::invalid_argument unless there is a group, all are of one optimizer, and each
    /// passes its check with state in that format.
    void check(cpu_optim::StateFormat state) const;

    /// The same with group number `group` replaced. Throws std::invalid_argument if there is none,
    /// or `hyper` is of another family.
    [[nodiscard]] HyperGroups with(std::size_t group,
                                   const cpu_optim::HyperParameters& hyper) const;
    [[nodiscard]] HyperGroups with(std::size_t group,
                                   const cpu_optim::LayerwiseHyperParameters& hyper) const;
    [[nodiscard]] HyperGroups with(std::size_t group,
                                   const cpu_optim::AdafactorHyperParameters& hyper) const;

    /// visitor(list of the family that it is).
    template <typename Visitor>
    auto visit(Visitor&& visitor) const {
        return std::visit(std::forward<Visitor>(visitor), groups_);
    }

  private:
    std::variant<Elementwise, Layerwise, Factored> groups_;
};

}  // namespace spillway::offload
