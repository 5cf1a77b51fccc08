// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/hyper_groups.h"

#include <algorithm>
#include <stdexcept>
#include <type_traits>

#include <fmt/format.h>

namespace spillway::offload {
namespace {

template <class Hyper>
HyperGroups replaced(const HyperGroups& groups, std::size_t group, const Hyper& hyper) {
    if (group >= groups.size())
        throw std::invalid_argument(
            fmt::format("group {} is set; there are {}", group, groups.size()));
    return groups.visit([&](auto list) -> HyperGroups {
        if constexpr (std::is_same_v<typename decltype(list)::value_type, Hyper>) {
            list[group] = hyper;
            return list;
        } else {
            throw std::invalid_argument(fmt::format(
                "group {} is set to {}; the optimizer is {}: make a new one", group,
                cpu_optim::optimizer_name(hyper), cpu_optim::optimizer_name(list[group])));
        }
    });
}

/// Every tensor may be a matrix.
cpu_optim::OptimizerNeeds needs_of(const cpu_optim::AdafactorHyperParameters& hyper) noexcept {
    return cpu_optim::needs(hyper, cpu_optim::SecondMoment::factored);
}
template <class Hyper>
cpu_optim::OptimizerNeeds needs_of(const Hyper& hyper) noexcept {
    return cpu_optim::needs(hyper);
}

/// Its kinds of state, which has no planes.
std::array<cpu_optim::MomentKind, cpu_optim::most_lossy_planes> kinds_of(
    const cpu_optim::AdafactorHyperParameters& /*hyper*/) noexcept {
    return {cpu_optim::MomentKind::square, cpu_optim::MomentKind::square};
}
template <class Hyper>
std::array<cpu_optim::MomentKind, cpu_optim::most_lossy_planes> kinds_of(
    const Hyper& hyper) noexcept {
    return cpu_optim::moment_kinds(hyper);
}

/// Whether both are of one optimizer.
bool same_kind(const cpu_optim::AdafactorHyperParameters& /*one*/,
               const cpu_optim::AdafactorHyperParameters& /*other*/) noexcept {
    return true;
}
template <class Hyper>
bool same_kind(const Hyper& one, const Hyper& other) noexcept {
    return one.index() == other.index();
}

}  // namespace

std::size_t HyperGroups::size() const noexcept {
    return visit([](const auto& list) { return list.size(); });
}

cpu_optim::OptimizerNeeds HyperGroups::needs() const noexcept {
    cpu_optim::OptimizerNeeds all{
        .state_planes = 0, .passes = 1, .gradient_passes = 1, .reach = cpu_optim::Reach::element};
    visit([&](const auto& list) {
        for (const auto& hyper : list) {
            const auto one = needs_of(hyper);
            all.state_planes = std::max(all.state_planes, one.state_planes);
            all.passes = std::max(all.passes, one.passes);
            all.gradient_passes = std::max(all.gradient_passes, one.gradient_passes);
            all.reach = std::max(all.reach, one.reach);
            all.measured_planes = std::max(all.measured_planes, one.measured_planes);
            all.row_vectors = std::max(all.row_vectors, one.row_vectors);
            all.column_vectors = std::max(all.column_vectors, one.column_vectors);
        }
    });
    return all;
}

SecondMoments HyperGroups::second_moments() const noexcept {
    return std::holds_alternative<Factored>(groups_) ? SecondMoments::factored
                                                     : SecondMoments::planes;
}

std::string_view HyperGroups::optimizer_name(std::size_t group) const {
    return visit([&](const auto& list) { return cpu_optim::optimizer_name(list.at(group)); });
}

std::array<cpu_optim::MomentKind, cpu_optim::most_lossy_planes> HyperGroups::moment_kinds(
    std::size_t group) const {
    return visit([&](const auto& list) { return kinds_of(list.at(group)); });
}

void HyperGroups::check(cpu_optim::StateFormat state) const {
    if (size() == 0)
        throw std::invalid_argument("an optimizer needs at least one group of hyper-parameters");
    visit([&](const auto& list) {
        for (const auto& hyper : list) {
            cpu_optim::check(hyper, state);
            if (!same_kind(hyper, list.front()))
                throw std::invalid_argument(fmt::format(
                    "the groups are of {} and of {}: one optimizer serves all groups",
                    cpu_optim::optimizer_name(list.front()), cpu_optim::optimizer_name(hyper)));
        }
    });
}

HyperGroups HyperGroups::with(std::size_t group, const cpu_optim::HyperParameters& hyper) const {
    return replaced(*this, group, hyper);
}

HyperGroups HyperGroups::with(std::size_t group,
                              const cpu_optim::LayerwiseHyperParameters& hyper) const {
    return replaced(*this, group, hyper);
}

HyperGroups HyperGroups::with(std::size_t group,
                              const cpu_optim::AdafactorHyperParameters& hyper) const {
    return replaced(*this, group, hyper);
}

}  // namespace spillway::offload
