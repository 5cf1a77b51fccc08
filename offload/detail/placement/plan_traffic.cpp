// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/placement/plan_traffic.h"

#include <vector>

#include "offload/detail/activations/activation_needs.h"
#include "offload/detail/placement/unit_cache.h"

namespace spillway::offload::detail {

void count_traffic(const ElementOrder& order, std::span<const Unit> units,
                   const PlanRequest& request, OffloadPlan& plan) {
    std::vector<std::size_t> class_of(units.size());
    std::vector<std::size_t> slots;
    for (const auto& slot_class : plan.weight_slots) {
        for (const auto unit : slot_class.units)
            class_of[unit] = slots.size();
        slots.push_back(slot_class.slots);
    }
    const auto fetches = count_fetches(request.training_uses, class_of, slots);
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
        const auto range = unit_range(order, units[unit]);
        for (auto tile = range.begin / tile_elements; tile * tile_elements < range.end; ++tile) {
            const auto chunk = tile / plan.chunk_tiles;
            for (const auto plane : {Plane::weight, Plane::residue}) {
                plan.to_device_bytes_per_step += fetches[unit] * tile_bytes(plane);
                if (plan.resident[index_of(plane)][chunk] == 0)
                    plan.nvme_weight_read_bytes_per_step += fetches[unit] * tile_bytes(plane);
            }
        }
    }
    for (const auto unit : request.gradient_uses) {
        // Tensor by tensor, without the gaps between them.
        for (std::uint32_t i = 0; i < units[unit].tensor_count; ++i)
            plan.to_host_bytes_per_step +=
                order.range(units[unit].first_tensor + i).size() * sizeof(float);
    }
    for (std::uint64_t chunk = 0; chunk < plan.chunks; ++chunk) {
        std::uint64_t moved = 0;
        const auto tiles = plan.chunk_range(chunk, order.tiles()).size();
        for (const auto plane : plan.planes) {
            (plan.resident[index_of(plane)][chunk] == 0 ? moved : plan.commit_bytes) +=
                tiles * tile_bytes(plane);
        }
        if (plan.gradient_resident[chunk] == 0 && request.timing == UpdateTiming::after_norm) {
            moved += tiles * gradient_tile_bytes;
            plan.nvme_gradient_bytes_per_step += tiles * gradient_tile_bytes;
        }
        plan.nvme_read_bytes_per_step += moved * plan.reads_of(chunk);
        plan.nvme_written_bytes_per_step += moved;
    }
    plan.nvme_activation_bytes_per_step =
        plan.activation_stores * activation_needs(plan.activations).disk_bytes;
    plan.nvme_read_bytes_per_step +=
        plan.nvme_weight_read_bytes_per_step + plan.nvme_activation_bytes_per_step;
    plan.nvme_written_bytes_per_step += plan.nvme_activation_bytes_per_step;
    plan.disk_bytes += plan.nvme_gradient_bytes_per_step + plan.nvme_activation_bytes_per_step;
}

}  // namespace spillway::offload::detail
