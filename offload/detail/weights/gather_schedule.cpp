// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/weights/gather_schedule.h"

#include <optional>

namespace spillway::offload::detail {
namespace {

struct Slot {
    std::size_t slot_class = 0;
    std::optional<std::size_t> unit;
    std::size_t last_use = 0;  ///< counted from 1
};

std::size_t choose(const std::vector<Slot>& slots, std::size_t slot_class, std::size_t unit) {
    std::optional<std::size_t> chosen;
    for (std::size_t i = 0; i < slots.size(); ++i) {
        if (slots[i].slot_class != slot_class)
            continue;
        if (slots[i].unit == unit)
            return i;
        if (!chosen || slots[i].last_use < slots[*chosen].last_use)
            chosen = i;
    }
    return *chosen;
}

}  // namespace

std::vector<GatherUse> gather_schedule(std::span<const std::size_t> uses,
                                       std::span<const UnitSlotClass> classes,
                                       std::span<const std::uint8_t> kept) {
    std::vector<Slot> slots;
    std::vector<std::size_t> class_of(kept.size());
    for (std::size_t slot_class = 0; slot_class < classes.size(); ++slot_class) {
        for (const auto unit : classes[slot_class].units)
            class_of[unit] = slot_class;
        for (std::size_t i = 0; i < classes[slot_class].slots; ++i)
            slots.emplace_back().slot_class = slot_class;
    }
    std::vector<bool> fetched(kept.size(), false);
    std::vector<GatherUse> schedule;
    for (const auto unit : uses) {
        GatherUse use{.unit = unit, .slot = choose(slots, class_of.at(unit), unit)};
        auto& slot = slots[use.slot];
        use.gathers = slot.unit != unit;
        use.fetches = use.gathers && !(kept[unit] != 0 && fetched[unit]);
        fetched[unit] = fetched[unit] || use.fetches;
        schedule.push_back(use);
        slot.unit = unit;
        slot.last_use = schedule.size();
    }
    return schedule;
}

}  // namespace spillway::offload::detail
