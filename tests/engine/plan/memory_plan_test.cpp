// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/plan/memory_plan.h"

#include <algorithm>

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

TEST_CASE("memory_plan: layers' inputs leave a device that is too small for them") {
    using spillway::offload::ActivationTier;
    auto settings = small();
    settings.model = "gpt2:16x64x2";
    settings.batch = 64;  // an input is 1 MiB
    settings.micro_batches = 8;
    settings.recompute = "full";
    const auto layout = make_layout(settings);
    const auto plan_with = [&](std::size_t host, std::size_t device, NvmeTier nvme) {
        return plan_training(layout, settings, 2, {MemoryKind::device, host, device}, nvme);
    };
    std::size_t least_on_device = 16;
    std::size_t most_in_host = 0;
    for (std::size_t device = 40 * mib; device >= 8 * mib; device -= 2 * mib) {
        CAPTURE(device);
        const auto roomy = plan_with(256 * mib, device, NvmeTier::present);
        const auto& inputs = roomy.offload.activations;
        CHECK(roomy.device_bytes() <= device);
        CHECK(inputs.layers_in(ActivationTier::nvme) == 0);  // host memory is free
        CHECK(inputs.layers_in(ActivationTier::device) <= least_on_device);
        least_on_device = inputs.layers_in(ActivationTier::device);
        most_in_host = std::max(most_in_host, inputs.layers_in(ActivationTier::host));
        CHECK(roomy.moved_input_bytes() == inputs.layers_in(ActivationTier::host) * mib);
        // Without a drive host memory need not hold more than the device does not.
        const auto enough = roomy.host_bytes(MemoryKind::device);
        CHECK(plan_with(enough, device, NvmeTier::absent).moved_input_bytes() ==
              roomy.moved_input_bytes());
    }
    CHECK(least_on_device < 8);
    CHECK(most_in_host > 8);
    // With less host memory moments leave it first, then inputs, weights last.
    bool some_on_drive = false;
    for (std::size_t host = 40 * mib; host >= 18 * mib; host -= mib) {
        CAPTURE(host);
        const auto plan = plan_with(host, 9 * mib, NvmeTier::present);
        CHECK(plan.host_bytes(MemoryKind::device) <= host);
        const auto on_drive = plan.inputs_in(ActivationTier::nvme);
        CHECK(plan.offload.nvme_activation_bytes_per_step == on_drive);
        CHECK(plan.offload.disk_bytes > 2 * on_drive);
        if (plan.inputs_in(ActivationTier::host) != 0)
            CHECK(plan.offload.nvme_weight_read_bytes_per_step == 0);
        some_on_drive = some_on_drive || on_drive != 0;
    }
    CHECK(some_on_drive);
    // Without a drive host memory must hold them all.
    const auto held = plan_with(64 * mib, 9 * mib, NvmeTier::absent);
    CHECK(held.inputs_in(ActivationTier::nvme) == 0);
    CHECK(held.inputs_in(ActivationTier::host) > 0);
    CHECK_THROWS_AS(plan_with(24 * mib, 9 * mib, NvmeTier::absent), PlanRefused);
    // Where neither holds them, some are made again.
    const auto again = plan_with(24 * mib, 17 * mib, NvmeTier::absent);
    CHECK(again.moved_input_bytes() == 0);
    CHECK(again.offload.activations.layers_in(ActivationTier::none) > 0);
    CHECK(again.device_bytes() <= 17 * mib);
}

TEST_CASE("memory_plan: on a host device inputs leave memory for a drive alone") {
    using spillway::offload::ActivationTier;
    auto settings = small();
    settings.model = "gpt2:16x64x2";
    settings.batch = 64;
    settings.micro_batches = 8;
    const auto layout = make_layout(settings);
    const auto plan_with = [&](std::size_t host, NvmeTier nvme) {
        return plan_training(layout, settings, 2, {MemoryKind::host, host, host}, nvme);
    };
    CHECK(plan_with(256 * mib, NvmeTier::present).moved_input_bytes() == 0);
    const auto small_host = 28 * mib;
    CHECK_THROWS_AS(plan_with(small_host, NvmeTier::absent), PlanRefused);
    const auto plan = plan_with(small_host, NvmeTier::present);
    CHECK(plan.inputs_in(ActivationTier::nvme) > 0);
    CHECK(plan.inputs_in(ActivationTier::host) == 0);
    CHECK(plan.host_bytes(MemoryKind::host) <= small_host);
    CHECK(plan.offload.nvme_weight_read_bytes_per_step == 0);
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
