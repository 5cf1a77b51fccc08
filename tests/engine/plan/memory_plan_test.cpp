// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/plan/memory_plan.h"

#include <catch2/catch.hpp>

using namespace spillway::engine;
using spillway::cuda::MemoryKind;
using spillway::offload::NvmeTier;
using spillway::offload::PlanRefused;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

TrainSettings small() {
    TrainSettings settings;
    settings.model = "gpt2:6x128x4";
    settings.context = 64;
    settings.batch = 12;
    return settings;
}

}  // namespace

TEST_CASE("memory_plan: with room for all, one micro-batch and cheap recomputation") {
    const auto settings = small();
    const auto layout = make_layout(settings);
    const MemoryBudgets budgets{MemoryKind::host, 1024 * mib, 1024 * mib};
    const auto plan = plan_training(layout, settings, 2, budgets, NvmeTier::absent);
    CHECK(plan.shape.micro_batches == 1);
    CHECK(plan.shape.recompute == Recompute::cheap_parts);
    CHECK(plan.shape.sequences == 12);
    CHECK(plan.shape.sequence_tokens == 64);
    CHECK(plan.activation_bytes == Gpt2Step::device_bytes(layout.config, plan.shape, 2));
    // On the host device activations are host memory.
    CHECK(plan.client_host_bytes > plan.activation_bytes);
    CHECK(plan.host_bytes(MemoryKind::host) <= budgets.host_bytes);
}

TEST_CASE("memory_plan: any budget that plans is kept, and less of it costs recomputation") {
    const auto settings = small();
    const auto layout = make_layout(settings);
    bool recomputed = false;
    bool refused = false;
    for (std::size_t device = 16 * mib; device >= mib / 4; device = device * 3 / 4) {
        const MemoryBudgets budgets{MemoryKind::device, 64 * mib, device};
        INFO("device memory " << device);
        try {
            const auto plan = plan_training(layout, settings, 2, budgets, NvmeTier::present);
            CHECK_FALSE(refused);
            CHECK(plan.activation_bytes + plan.offload.device_bytes <= device);
            CHECK(plan.host_bytes(MemoryKind::device) <= budgets.host_bytes);
            CHECK(plan.shape.sequences % plan.shape.micro_batches == 0);
            recomputed = recomputed || plan.shape.recompute == Recompute::full;
        } catch (const PlanRefused& error) {
            refused = true;
            CHECK(error.needed_bytes > error.available_bytes);
            CHECK(error.available_bytes == device);
        }
    }
    CHECK(recomputed);
    CHECK(refused);
}

TEST_CASE("memory_plan: devices that share a step have their part of its sequences each") {
    const auto settings = small();
    const auto layout = make_layout(settings);
    const MemoryBudgets alone{MemoryKind::device, 64 * mib, 16 * mib};
    const auto one = plan_training(layout, settings, 2, alone, NvmeTier::absent);
    CHECK_FALSE(one.group);
    CHECK(one.shape.step_sequences == 0);
    const MemoryBudgets shared{MemoryKind::device, 64 * mib, 8 * mib, 3};
    const auto plan = plan_training(layout, settings, 2, shared, NvmeTier::absent);
    REQUIRE(plan.group);
    CHECK(plan.group->ranks == 3);
    CHECK(plan.shape.sequences == 4);
    CHECK(plan.shape.step_sequences == 12);
    CHECK(plan.device_bytes() == plan.activation_bytes + plan.group->device_bytes);
    CHECK(plan.device_bytes() <= shared.device_bytes);
    CHECK(plan.device_bytes() < one.device_bytes());
    // Units on their way to the devices are host memory.
    CHECK(plan.host_bytes(MemoryKind::device) ==
          plan.client_host_bytes + plan.offload.host_bytes + plan.offload.device_bytes);
    CHECK(plan.host_bytes(MemoryKind::device) <= shared.host_bytes);
}

TEST_CASE("memory_plan: what is set is kept") {
    auto settings = small();
    settings.micro_batches = 4;
    settings.recompute = "full";
    const MemoryBudgets budgets{MemoryKind::host, 1024 * mib, 1024 * mib};
    const auto plan = plan_training(make_layout(settings), settings, 2, budgets, NvmeTier::absent);
    CHECK(plan.shape.micro_batches == 4);
    CHECK(plan.shape.recompute == Recompute::full);
}

TEST_CASE("memory_plan: host memory that is too small is refused with bytes") {
    const auto settings = small();
    const MemoryBudgets budgets{MemoryKind::device, mib, 64 * mib};
    try {
        static_cast<void>(
            plan_training(make_layout(settings), settings, 2, budgets, NvmeTier::absent));
        FAIL("1 MiB was enough");
    } catch (const PlanRefused& error) {
        CHECK(error.available_bytes == mib);
        CHECK(error.needed_bytes > mib);
    }
}

TEST_CASE("memory_plan: updates run with backward only where nothing must be waited for") {
    using spillway::offload::UpdateTiming;
    TrainSettings settings;
    CHECK(update_timing(settings) == UpdateTiming::after_norm);
    settings.clip.kind = ClipKind::off;
    CHECK(update_timing(settings) == UpdateTiming::after_norm);
    settings.nonfinite = "stop";
    CHECK(update_timing(settings) == UpdateTiming::as_completed);
    settings.optimizer = "lars";  // whole tensors wait
    CHECK(update_timing(settings) == UpdateTiming::after_norm);
    settings.optimizer = "lion";
    CHECK(update_timing(settings) == UpdateTiming::as_completed);
    settings.clip = Clip{};
    CHECK(update_timing(settings) == UpdateTiming::after_norm);
}
