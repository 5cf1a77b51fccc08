// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/update/update_rules.h"

#include <cmath>
#include <limits>
#include <map>
#include <stdexcept>
#include <tuple>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

namespace spillway::offload::detail {
namespace {

template <class Hyper>
struct Made {
    std::vector<Hyper> hyper;
    std::vector<decltype(cpu_optim::make_coefficients(std::declval<Hyper>(), 1, 1.0))> coefficients;
    std::vector<std::size_t> rule_of;
};

/// One of a kind for all tensors of a group that are at the same step and take the same scale.
template <class Hyper>
Made<Hyper> make_rules(const std::vector<Hyper>& groups, std::span<const TensorStep> tensors) {
    Made<Hyper> made;
    std::map<std::tuple<std::uint32_t, std::uint64_t, double>, std::size_t> known;
    for (const auto& tensor : tensors) {
        const auto [found, is_new] = known.try_emplace(
            {tensor.group, tensor.number, tensor.gradient_scale}, made.coefficients.size());
        if (is_new) {
            const auto& hyper = groups.at(tensor.group);
            made.coefficients.push_back(
                cpu_optim::make_coefficients(hyper, tensor.number, tensor.gradient_scale));
            made.hyper.push_back(hyper);
        }
        made.rule_of.push_back(found->second);
    }
    return made;
}

}  // namespace

TensorMeasures make_measures(const ElementOrder& order, std::size_t passes) {
    if (passes == 1)
        return {};
    return TensorMeasures(static_cast<std::size_t>(order.tiles()) + order.tensors().size());
}

UpdateRules::UpdateRules(const ElementOrder& order, const HyperGroups& groups,
                         std::span<const TensorStep> tensors, TensorMeasures& measures)
    : order_(order), measures_(measures) {
    if ((groups.needs().passes == 1) != measures.empty())
        throw std::logic_error(
            fmt::format("{} takes {} passes, and the engine was planned for another number",
                        groups.optimizer_name(0), groups.needs().passes));
    groups.visit([&](const auto& list) {
        auto made = make_rules(list, tensors);
        rule_of_ = std::move(made.rule_of);
        if constexpr (std::is_same_v<std::decay_t<decltype(list)>, HyperGroups::Elementwise>) {
            rules_ = std::move(made.coefficients);
        } else {
            rules_ = Layerwise{.coefficients = std::move(made.coefficients),
                               .hyper = std::move(made.hyper),
                               .steps = std::vector<std::optional<float>>(tensors.size())};
        }
    });
}

void UpdateRules::measure(cpu_optim::Isa isa, TensorId tensor, const TilePart& part,
                          const cpu_optim::ElementwiseRun& run) {
    const auto& rules = std::get<Layerwise>(rules_);
    measure_of(part.chunk.tiles.begin + part.index, tensor) =
        measure_tile_part(isa, rules.coefficients[rule_of_[tensor]], part, run);
}

void UpdateRules::settle(TensorId tensor) {
    auto* const rules = std::get_if<Layerwise>(&rules_);
    const auto range = order_.range(tensor);
    if (rules == nullptr || rules->steps[tensor] || range.size() == 0)
        return;
    cpu_optim::LayerSums sums;
    for (auto tile = range.begin / tile_elements; tile * tile_elements < range.end; ++tile)
        sums += measure_of(tile, tensor);
    if (!std::isfinite(sums.weight_squares) || !std::isfinite(sums.direction_squares)) {
        rules->steps[tensor] = std::numeric_limits<float>::quiet_NaN();
        return;
    }
    try {
        rules->steps[tensor] = cpu_optim::layer_step(rules->hyper[rule_of_[tensor]], sums);
    } catch (const std::invalid_argument& error) {
        throw std::runtime_error(
            fmt::format("tensor '{}': {}", order_.tensors()[tensor].name, error.what()));
    }
}

void UpdateRules::settle(ElementOrder::TensorSpan tensors,
                         const std::function<bool(TensorId)>& has_gradient) {
    if (!std::holds_alternative<Layerwise>(rules_))
        return;
    for (auto tensor = tensors.first; tensor < tensors.last; ++tensor) {
        if (order_.range(tensor).size() != 0 && has_gradient(tensor))
            settle(tensor);
    }
}

std::size_t UpdateRules::update(cpu_optim::Isa isa, TensorId tensor,
                                const cpu_optim::RoundingStream& stream, const TilePart& part,
                                const cpu_optim::ElementwiseRun& run) const {
    const auto rule = rule_of_[tensor];
    if (const auto* const elementwise = std::get_if<Elementwise>(&rules_))
        return update_tile_part(isa, (*elementwise)[rule], stream, part, run);
    const auto& layerwise = std::get<Layerwise>(rules_);
    return update_tile_part(
        isa, cpu_optim::with_step(layerwise.coefficients[rule], layerwise.steps[tensor].value()),
        stream, part, run);
}

}  // namespace spillway::offload::detail
