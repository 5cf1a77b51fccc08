// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/update/update_staging.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include <catch2/catch.hpp>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace spillway::offload;
using namespace spillway::offload::detail;

namespace {

/// Two chunks of one tile: all weights in memory, the second chunk's moments on the drive, and the
/// first's gradient without a home.
OffloadPlan sample_plan() {
    OffloadPlan plan;
    plan.planes = {Plane::weight, Plane::residue, Plane::m, Plane::v};
    plan.chunk_tiles = 1;
    plan.chunks = 2;
    for (const auto plane : plan.planes)
        plan.resident[index_of(plane)] = {1, 1};
    plan.resident[index_of(Plane::m)] = {1, 0};
    plan.resident[index_of(Plane::v)] = {1, 0};
    plan.gradient_resident = {0, 1};
    plan.pipeline_slots = 3;
    return plan;
}

}  // namespace

TEST_CASE("update staging: has room for what some chunk has on the drive") {
    const auto gradients = GENERATE(HomelessGradients::spilled, HomelessGradients::elsewhere);
    const auto plan = sample_plan();
    MemoryLedger ledger(std::size_t{1} << 30);
    const HostPlanes planes(plan, 2, ledger);
    const auto before_bytes = ledger.total_bytes();
    const UpdateStaging staging(plan, planes, gradients, ledger);
    CHECK(ledger.total_bytes() > before_bytes);
    REQUIRE(staging.slots().size() == 3);
    const auto pieces = staging.pieces();
    const auto inside = [&](const std::byte* begin, std::size_t bytes) {
        return std::ranges::any_of(pieces, [&](std::span<const std::byte> piece) {
            return piece.data() <= begin && begin + bytes <= piece.data() + piece.size();
        });
    };
    for (const auto& slot : staging.slots()) {
        CHECK(slot.planes[index_of(Plane::weight)] == nullptr);
        CHECK(slot.planes[index_of(Plane::residue)] == nullptr);
        CHECK(inside(slot.planes[index_of(Plane::m)], tile_bytes(Plane::m)));
        CHECK(inside(slot.planes[index_of(Plane::v)], tile_bytes(Plane::v)));
        CHECK((slot.gradient != nullptr) == (gradients == HomelessGradients::spilled));
        if (slot.gradient != nullptr)
            CHECK(inside(slot.gradient, gradient_tile_bytes));
    }
}

TEST_CASE("update staging: takes nothing where everything is resident") {
    auto plan = sample_plan();
    for (auto& resident : plan.resident)
        std::ranges::fill(resident, std::uint8_t{1});
    plan.pipeline_slots = 0;
    MemoryLedger ledger(std::size_t{1} << 30);
    const HostPlanes planes(plan, 2, ledger);
    const auto before_bytes = ledger.total_bytes();
    const UpdateStaging staging(plan, planes, HomelessGradients::elsewhere, ledger);
    CHECK(ledger.total_bytes() == before_bytes);
    CHECK(staging.slots().empty());
    CHECK(staging.pieces().empty());
    CHECK(staging.note().empty());
}

#if !defined(__SANITIZE_THREAD__)  // whose runtime maps memory of its own where there is a gap
// The kernel would copy registered pages for the child at once, all of them.
TEST_CASE("update staging: a forked child does not inherit it") {
    const auto plan = sample_plan();
    MemoryLedger ledger(std::size_t{1} << 30);
    const HostPlanes planes(plan, 2, ledger);
    const UpdateStaging staging(plan, planes, HomelessGradients::elsewhere, ledger);
    auto* const page = staging.pieces().front().data();
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        unsigned char present = 0;
        ::_exit(::mincore(page, 4096, &present) != 0 && errno == ENOMEM ? 0 : 1);
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
}
#endif
