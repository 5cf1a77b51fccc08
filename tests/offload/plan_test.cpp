// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/plan.h"

#include <algorithm>
#include <numeric>

#include <catch2/catch.hpp>

#include "tests/offload/synthetic_training.h"

using namespace spillway;
using namespace spillway::offload;
using namespace spillway::testing;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

PlanRequest request_for(const SyntheticModel& model, cuda::MemoryKind kind,
                        std::size_t host_bytes) {
    PlanRequest request;
    request.device_kind = kind;
    request.host_bytes = host_bytes;
    request.device_bytes = 16 * mib;
    request.nvme = NvmeTier::present;
    request.chunk_bytes = 64 << 10;
    request.training_uses = model.uses;
    request.gradient_uses = model.gradient_uses;
    return request;
}

std::size_t resident_chunks(const OffloadPlan& plan) {
    std::size_t count = 0;
    for (const auto& chunks : plan.resident)
        count += static_cast<std::size_t>(std::count(chunks.begin(), chunks.end(), 1));
    const auto& gradients = plan.gradient_resident;
    return count + static_cast<std::size_t>(std::count(gradients.begin(), gradients.end(), 1));
}

}  // namespace

TEST_CASE("a plan stays within its budget and uses more of a larger one") {
    const auto model = synthetic_model();
    const ElementOrder order(model.tensors);
    for (const auto kind : {cuda::MemoryKind::host, cuda::MemoryKind::device}) {
        std::size_t resident_before = 0;
        std::uint64_t moved_before = ~std::uint64_t{0};
        for (std::size_t budget_mib = 19; budget_mib <= 80; ++budget_mib) {
            CAPTURE(budget_mib);
            const auto plan =
                make_plan(order, model.units, request_for(model, kind, budget_mib * mib));
            const auto on_host = kind == cuda::MemoryKind::host ? plan.device_bytes : 0;
            CHECK(plan.host_bytes + on_host <= budget_mib * mib);
            CHECK(plan.device_bytes <= 16 * mib);
            const auto items = std::accumulate(
                plan.host_items.begin(), plan.host_items.end(), std::size_t{0},
                [](std::size_t sum, const MemoryItem& item) { return sum + item.bytes; });
            CHECK(items == plan.host_bytes);
            CHECK(resident_chunks(plan) >= resident_before);
            CHECK(plan.nvme_read_bytes_per_step <= moved_before);
            resident_before = resident_chunks(plan);
            moved_before = plan.nvme_read_bytes_per_step;
        }
        CHECK(moved_before == 0);
    }
}

TEST_CASE("a refused plan says what the least budget is, and that budget is enough") {
    const auto model = synthetic_model();
    const ElementOrder order(model.tensors);
    for (const auto nvme : {NvmeTier::present, NvmeTier::absent}) {
        auto request = request_for(model, cuda::MemoryKind::device, 3 * mib);
        request.nvme = nvme;
        std::size_t needed = 0;
        try {
            (void)make_plan(order, model.units, request);
            FAIL("3 MiB cannot be enough");
        } catch (const PlanRefused& refused) {
            needed = refused.needed_bytes;
            CHECK(refused.available_bytes == 3 * mib);
        }
        request.host_bytes = needed - 1;
        CHECK_THROWS_AS(make_plan(order, model.units, request), PlanRefused);
        request.host_bytes = needed;
        CHECK_NOTHROW(make_plan(order, model.units, request));
    }
}

TEST_CASE("a device too small for two units of a size is refused with the bytes") {
    const auto model = synthetic_model();
    const ElementOrder order(model.tensors);
    auto request = request_for(model, cuda::MemoryKind::device, 100 * mib);
    request.device_bytes = mib;
    CHECK_THROWS_AS(make_plan(order, model.units, request), PlanRefused);
}

TEST_CASE("a step writes every plane that is on the drive once, twelve bytes a parameter in all") {
    const ElementOrder order({{"a", {std::uint64_t{64} * tile_elements}, 0, 1}});
    const std::vector<Unit> units{{0, 1}};
    PlanRequest request;
    request.device_kind = cuda::MemoryKind::device;
    request.device_bytes = 64 * mib;
    request.nvme = NvmeTier::present;
    request.chunk_bytes = 64 << 10;
    request.training_uses = {0};
    request.gradient_uses = {0};
    request.timing = UpdateTiming::as_completed;
    request.host_bytes = 18 * mib;
    const auto plan = make_plan(order, units, request);
    const auto weights_resident =
        std::accumulate(plan.resident[0].begin(), plan.resident[0].end(), 0) +
        std::accumulate(plan.resident[1].begin(), plan.resident[1].end(), 0);
    const auto state = order.parameters() * 12;
    CHECK(plan.nvme_written_bytes_per_step ==
          state - static_cast<std::uint64_t>(weights_resident) * tile_bytes(Plane::weight));
}

TEST_CASE("wider windows are planned as asked and cost their chunks' bytes") {
    const auto model = synthetic_model();
    const ElementOrder order(model.tensors);
    auto request = request_for(model, cuda::MemoryKind::device, 0);
    const auto least = [&](Windows windows) {
        request.windows = windows;
        request.host_bytes = 0;
        try {
            (void)make_plan(order, model.units, request);
        } catch (const PlanRefused& refused) {
            request.host_bytes = refused.needed_bytes;
        }
        const auto plan = make_plan(order, model.units, request);
        CHECK(plan.pipeline_slots == windows.update_slots);
        CHECK(plan.weight_read_buffers == windows.weight_buffers);
        return plan.host_bytes;
    };
    const auto usual = least({});
    // A slot of an update holds weight, residue, m, v and gradient of a chunk, a buffer of weights
    // the first two; arenas are rounded up to 2 MiB.
    constexpr std::size_t slots = 32;
    CHECK(least({.update_slots = 4 + slots}) >= usual + slots * (16 << 14));
    CHECK(least({.weight_buffers = 4 + slots}) >= usual + slots * (4 << 14) - 2 * mib);
    CHECK(least({.update_slots = 1, .weight_buffers = 1}) <= usual);
}

TEST_CASE("windows of no chunk, or of too many, are refused") {
    const auto model = synthetic_model();
    const ElementOrder order(model.tensors);
    auto request = request_for(model, cuda::MemoryKind::host, 100 * mib);
    for (const std::size_t chunks : {std::size_t{0}, most_window + 1}) {
        request.windows = {.update_slots = chunks};
        CHECK_THROWS_WITH(make_plan(order, model.units, request), Catch::Contains("update window"));
        request.windows = {.weight_buffers = chunks};
        CHECK_THROWS_WITH(make_plan(order, model.units, request), Catch::Contains("weight window"));
    }
}

TEST_CASE("a chunk size that is no multiple of a tile is refused") {
    const auto model = synthetic_model();
    const ElementOrder order(model.tensors);
    auto request = request_for(model, cuda::MemoryKind::host, 100 * mib);
    request.chunk_bytes = 100000;
    CHECK_THROWS_WITH(make_plan(order, model.units, request), Catch::Contains("100000"));
}
