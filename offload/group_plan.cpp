// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/group_plan.h"

#include <algorithm>

#include "offload/detail/placement/unit_share.h"
#include "offload/detail/weights/gather_schedule.h"
#include "offload/detail/weights/unit_slots.h"

namespace spillway::offload {
namespace {

using detail::UnitShare;

/// Room for the gathered shares of the largest unit of each class, which rounds up by ranks.
std::vector<UnitSlotClass> gathered_slots(const ElementOrder& order, std::span<const Unit> units,
                                          unsigned ranks) {
    auto classes = detail::group_by_size(order, units);
    for (auto& slots : classes) {
        slots.slot_bytes = 0;
        for (const auto unit : slots.units)
            slots.slot_bytes =
                std::max(slots.slot_bytes, UnitShare(order, units[unit], ranks).gathered_bytes());
    }
    return classes;
}

std::size_t uses_of(std::span<const std::size_t> uses, std::size_t unit) {
    return static_cast<std::size_t>(std::count(uses.begin(), uses.end(), unit));
}

/// Shares that a pass needs again, in the order in which it needs them first. Returns their bytes.
std::size_t keep_shares(const ElementOrder& order, std::span<const Unit> units,
                        const GroupRequest& request, std::size_t bytes, GroupPlan& plan) {
    std::size_t kept_bytes = 0;
    for (const auto unit : request.training_uses) {
        const auto share = UnitShare(order, units[unit], plan.ranks).share_bytes();
        if (plan.kept[unit] != 0 || uses_of(request.training_uses, unit) < 2 ||
            kept_bytes + share > bytes)
            continue;
        plan.kept[unit] = 1;
        kept_bytes += share;
    }
    return kept_bytes;
}

void count_traffic(const ElementOrder& order, std::span<const Unit> units,
                   const GroupRequest& request, GroupPlan& plan) {
    const auto bytes_of = [&](std::size_t unit) {
        return unit_range(order, units[unit]).size() * sizeof(float);
    };
    for (const auto& use :
         detail::gather_schedule(request.training_uses, plan.gathered, plan.kept)) {
        if (!use.fetches)
            continue;
        plan.fetched.push_back(use.unit);
        plan.to_device_bytes_per_step += bytes_of(use.unit);
    }
    for (const auto unit : request.gradient_uses)
        plan.to_host_bytes_per_step += bytes_of(unit);
}

}  // namespace

GroupPlan plan_group(const ElementOrder& order, std::span<const Unit> units,
                     const GroupRequest& request) {
    GroupPlan plan;
    plan.ranks = request.ranks;
    plan.gathered = gathered_slots(order, units, request.ranks);
    plan.kept.assign(units.size(), 0);
    for (const auto unit : request.gradient_uses) {
        const UnitShare share(order, units[unit], request.ranks);
        const auto bytes = static_cast<std::size_t>(share.elements().size()) * sizeof(float);
        plan.gradient_bytes = std::max(plan.gradient_bytes, (bytes + 4095) / 4096 * 4096);
        plan.landing_bytes = std::max(plan.landing_bytes, share.share_bytes());
    }
    const auto weights = detail::slot_bytes(plan.gathered);
    const auto fits = [&](std::size_t slots) {
        return weights + slots * plan.gradient_bytes + plan.landing_bytes <= request.device_bytes;
    };
    plan.gradient_slots = fits(2) ? 2 : 1;
    const auto needed = weights + plan.gradient_slots * plan.gradient_bytes + plan.landing_bytes;
    if (!fits(plan.gradient_slots))
        throw PlanRefused("device memory", needed, request.device_bytes,
                          "raise the memory of each device or its cap, or take a smaller hidden "
                          "size");
    const auto kept = keep_shares(order, units, request, request.device_bytes - needed, plan);
    plan.device_items = {{"weights of units", weights},
                         {"shares of weights", kept},
                         {"gradients of units", plan.gradient_slots * plan.gradient_bytes},
                         {"share of a gradient", plan.landing_bytes}};
    plan.device_bytes = needed + kept;
    count_traffic(order, units, request, plan);
    return plan;
}

}  // namespace spillway::offload
