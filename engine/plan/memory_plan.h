// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cuda/device.h"
#include "engine/model/gpt2_config.h"
#include "engine/model/gpt2_step.h"
#include "engine/settings/train_settings.h"
#include "offload/element_order.h"
#include "offload/group_plan.h"
#include "offload/plan.h"

namespace spillway::engine {

/// A GPT-2 as the memory manager sees it.
struct ModelLayout {
    Gpt2Config config;
    offload::ElementOrder order;
    std::vector<offload::Unit> units;
};
/// Of sound settings.
[[nodiscard]] ModelLayout make_layout(const TrainSettings& settings);

/// Memory for everything that a budget covers: the memory manager and its client.
struct MemoryBudgets {
    cuda::MemoryKind device_kind = cuda::MemoryKind::host;
    std::size_t host_bytes = 0;    ///< of a `host` device: its memory too
    std::size_t device_bytes = 0;  ///< of a `host` device: a cap within host_bytes; of several
                                   ///< devices: of each
    unsigned ranks = 1;            ///< devices that share each step
};

/// How a run fits its budgets: placement only, no bit of the result depends on it.
struct TrainPlan {
    BatchShape shape;
    std::size_t activation_bytes = 0;   ///< on the device
    std::size_t client_host_bytes = 0;  ///< host memory beside the memory manager's: data, a
                                        ///< trace and, on a `host` device, activations
    offload::OffloadPlan offload;
    /// Of several devices; the memory manager brings units to the host for them then.
    std::optional<offload::GroupPlan> group = std::nullopt;

    /// Host memory in all: what the ledgers must not exceed.
    [[nodiscard]] std::size_t host_bytes(cuda::MemoryKind kind) const noexcept {
        return client_host_bytes + offload.host_bytes +
               (kind == cuda::MemoryKind::host || group ? offload.device_bytes : 0);
    }
    /// Of each device.
    [[nodiscard]] std::size_t device_bytes() const noexcept {
        return activation_bytes + (group ? group->device_bytes : offload.device_bytes);
    }
    /// Over all links together.
    [[nodiscard]] std::uint64_t to_device_bytes_per_step() const noexcept {
        return (group ? group->to_device_bytes_per_step : offload.to_device_bytes_per_step) +
               moved_input_bytes();
    }
    [[nodiscard]] std::uint64_t to_host_bytes_per_step() const noexcept {
        return (group ? group->to_host_bytes_per_step : offload.to_host_bytes_per_step) +
               moved_input_bytes();
    }
    /// Bytes of layers' inputs that rest there: of all devices.
    [[nodiscard]] std::uint64_t inputs_in(offload::ActivationTier tier) const noexcept {
        return offload.activation_stores * offload.activations.bytes_in(tier);
    }
    /// Layers' inputs that leave a device in a step, and come back to it: of all devices.
    [[nodiscard]] std::uint64_t moved_input_bytes() const noexcept {
        return offload.activation_stores * offload.activations.moved_bytes();
    }
    [[nodiscard]] const std::vector<offload::MemoryItem>& device_items() const noexcept {
        return group ? group->device_items : offload.device_items;
    }
};

/// Micro-batches (of each device's sequences) and recomputation as set, or chosen: the cheapest
/// recomputation, then the fewest micro-batches, that leave half a budget to the state, else that
/// fit at all, else that fit if as few layers' inputs as it takes leave the device. Inputs leave a
/// `host` device also where weights would be on the drive otherwise. Those that leave rest in host
/// memory as far as that leaves room for the weights, the others on the drive. Without a drive, at
/// last, some are made again in backward. Throws
/// offload::PlanRefused naming the tier, the bytes needed and available.
[[nodiscard]] TrainPlan plan_training(const ModelLayout& layout, const TrainSettings& settings,
                                      std::size_t threads, const MemoryBudgets& budgets,
                                      offload::NvmeTier nvme);

/// Whether the settings name a folder for it.
[[nodiscard]] offload::NvmeTier nvme_tier(const TrainSettings& settings) noexcept;

/// When updates may run: with nothing to wait for (`--clip off|value:X --nonfinite stop`) as
/// gradients complete.
[[nodiscard]] offload::UpdateTiming update_timing(const TrainSettings& settings);

}  // namespace spillway::engine
