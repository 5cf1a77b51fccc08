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
    std::vector<std::uint64_t> numbers;  ///< of the steps that the coefficients are for
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
            made.numbers.push_back(tensor.number);
        }
        made.rule_of.push_back(found->second);
    }
    return made;
}

std::size_t measures_of(const ElementOrder& order) {
    return static_cast<std::size_t>(order.tiles()) + order.tensors().size();
}

}  // namespace

UpdateMemory make_update_memory(const ElementOrder& order, std::size_t passes,
                                SecondMoments moments) {
    UpdateMemory memory;
    if (moments == SecondMoments::factored)
        memory.factored.emplace(order);
    else if (passes != 1)
        memory.measures.resize(measures_of(order));
    return memory;
}

std::optional<MemoryItem> update_memory_item(const ElementOrder& order, std::size_t passes,
                                             SecondMoments moments) {
    if (moments == SecondMoments::factored)
        return MemoryItem{"factored second moments", FactoredMoments::bytes(order)};
    if (passes == 1)
        return std::nullopt;
    return MemoryItem{"measures of tensors", measures_of(order) * sizeof(cpu_optim::LayerSums)};
}

UpdateRules::UpdateRules(const ElementOrder& order, const HyperGroups& groups,
                         std::span<const TensorStep> tensors, UpdateMemory& memory)
    : order_(order), memory_(memory), passes_(groups.needs().passes), rules_(Elementwise()) {
    const bool factored = groups.second_moments() == SecondMoments::factored;
    if ((passes_ == 1 || factored) != memory.measures.empty() ||
        factored != memory.factored.has_value())
        throw std::logic_error(
            fmt::format("{} takes {} passes, and the engine was planned for another number",
                        groups.optimizer_name(0), passes_));
    groups.visit([&](const auto& list) {
        using List = std::decay_t<decltype(list)>;
        auto made = make_rules(list, tensors);
        rule_of_ = std::move(made.rule_of);
        if constexpr (std::is_same_v<List, HyperGroups::Elementwise>) {
            rules_ = std::move(made.coefficients);
        } else if constexpr (std::is_same_v<List, HyperGroups::Layerwise>) {
            rules_ = Layerwise{.coefficients = std::move(made.coefficients),
                               .hyper = std::move(made.hyper),
                               .steps = std::vector<std::optional<float>>(tensors.size())};
        } else {
            std::vector<FactoredUpdate::Rule> rules;
            for (std::size_t i = 0; i < made.hyper.size(); ++i)
                rules.push_back({made.coefficients[i], made.hyper[i], made.numbers[i]});
            rules_.emplace<FactoredUpdate>(order, *memory.factored, std::move(rules), rule_of_);
        }
    });
}

std::size_t UpdateRules::tiles_at_once() const noexcept {
    const auto* const factored = std::get_if<FactoredUpdate>(&rules_);
    return factored != nullptr ? factored->tiles_at_once()
                               : std::numeric_limits<std::size_t>::max();
}

void UpdateRules::measure(cpu_optim::Isa isa, MeasuringPass at, TensorId tensor,
                          const TilePart& part, const cpu_optim::ElementwiseRun& run) {
    if (auto* const factored = std::get_if<FactoredUpdate>(&rules_)) {
        factored->measure(isa, at, tensor, part, run);
        return;
    }
    const auto& rules = std::get<Layerwise>(rules_);
    measure_of(part.chunk.tiles.begin + part.index, tensor) =
        measure_tile_part(isa, rules.coefficients[rule_of_[tensor]], part, run);
}

void UpdateRules::end_turn(UpdateThreads& threads, std::size_t pass) {
    if (auto* const factored = std::get_if<FactoredUpdate>(&rules_))
        factored->end_turn(threads, pass);
}

void UpdateRules::settle_tensor(TensorId tensor, std::size_t pass) {
    try {
        if (auto* const factored = std::get_if<FactoredUpdate>(&rules_))
            factored->settle(tensor, pass);
        else if (auto* const layerwise = std::get_if<Layerwise>(&rules_); layerwise && pass > 0)
            settle_layer(*layerwise, tensor);
    } catch (const std::invalid_argument& error) {
        throw std::runtime_error(
            fmt::format("tensor '{}': {}", order_.tensors()[tensor].name, error.what()));
    }
}

void UpdateRules::settle_layer(Layerwise& rules, TensorId tensor) {
    const auto range = order_.range(tensor);
    if (rules.steps[tensor])
        return;
    cpu_optim::LayerSums sums;
    for (auto tile = range.begin / tile_elements; tile * tile_elements < range.end; ++tile)
        sums += measure_of(tile, tensor);
    rules.steps[tensor] =
        std::isfinite(sums.weight_squares) && std::isfinite(sums.direction_squares)
            ? cpu_optim::layer_step(rules.hyper[rule_of_[tensor]], sums)
            : std::numeric_limits<float>::quiet_NaN();
}

void UpdateRules::settle(ElementOrder::TensorSpan tensors, std::size_t pass,
                         const std::function<bool(TensorId)>& has_gradient) {
    if (std::holds_alternative<Elementwise>(rules_))
        return;
    for (auto tensor = tensors.first; tensor < tensors.last; ++tensor) {
        if (order_.range(tensor).size() != 0 && has_gradient(tensor))
            settle_tensor(tensor, pass);
    }
}

std::size_t UpdateRules::update(cpu_optim::Isa isa, TensorId tensor,
                                const cpu_optim::RoundingStream& stream, const TilePart& part,
                                const cpu_optim::ElementwiseRun& run) const {
    const auto rule = rule_of_[tensor];
    if (const auto* const elementwise = std::get_if<Elementwise>(&rules_))
        return update_tile_part(isa, (*elementwise)[rule], stream, part, run);
    if (const auto* const factored = std::get_if<FactoredUpdate>(&rules_))
        return factored->update(isa, tensor, part, run);
    const auto& layerwise = std::get<Layerwise>(rules_);
    return update_tile_part(
        isa, cpu_optim::with_step(layerwise.coefficients[rule], layerwise.steps[tensor].value()),
        stream, part, run);
}

}  // namespace spillway::offload::detail
