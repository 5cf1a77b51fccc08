// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/update/update_visits.h"

#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

namespace spillway::offload::detail {
namespace {

/// Chunks of two tiles; of tensors of the given numbers of tiles.
struct Example {
    explicit Example(const std::vector<std::uint64_t>& tensor_tiles, std::size_t passes = 2)
        : order([&] {
              std::vector<TensorSpec> specs;
              for (const auto tiles : tensor_tiles)
                  specs.push_back(
                      {"t" + std::to_string(specs.size()), {tiles * tile_elements}, 0, 1});
              return specs;
          }()) {
        plan.chunk_tiles = 2;
        plan.chunks = (order.tiles() + 1) / 2;
        plan.passes = passes;
        for (std::uint64_t chunk = 0; chunk < plan.chunks; ++chunk)
            forward.push_back(chunk);
    }
    void keep(const std::set<std::uint64_t>& resident) {
        plan.kept = kept_between_passes(
            order, plan, [&](std::uint64_t chunk) { return !resident.contains(chunk); });
    }

    /// The last chunk that a tensor of `chunk` has elements in.
    [[nodiscard]] std::uint64_t reach(std::uint64_t chunk) const {
        const auto chunk_elements = 2 * tile_elements;
        const auto tensors =
            order.tensors_in({chunk * chunk_elements, (chunk + 1) * chunk_elements});
        return (order.range(tensors.last - 1).end - 1) / chunk_elements;
    }

    ElementOrder order;
    OffloadPlan plan;
    std::vector<std::uint64_t> forward;
};

}  // namespace

TEST_CASE("update visits: one pass goes through the order it is given") {
    Example example({5, 3});
    example.plan.passes = 1;
    const std::vector<std::uint64_t> backward{3, 2, 1, 0};
    const auto visits = update_visits(example.order, example.plan, backward);
    REQUIRE(visits.size() == 4);
    for (std::size_t i = 0; i < 4; ++i)
        CHECK(visits[i] == ChunkVisit{backward[i], VisitKind::update});
}

TEST_CASE("update visits: a chunk is updated once all that its tensors reach into is measured") {
    Example example({1, 3, 2, 11, 1});  // edges at tiles 1, 4, 6, 17, 18: chunks 0-1, 2, 3-8
    example.keep({});
    CHECK(example.plan.kept == std::vector<std::uint8_t>{1, 1, 1, 0, 0, 1, 1, 1, 1});
    using enum VisitKind;
    CHECK(update_visits(example.order, example.plan, example.forward) ==
          std::vector<ChunkVisit>{{0, measure_and_keep},
                                  {1, measure_and_keep},
                                  {0, update_kept, 1},
                                  {1, update_kept, 1},
                                  {2, measure_and_keep},
                                  {2, update_kept, 1},
                                  {3, measure},
                                  {4, measure},
                                  {5, measure_and_keep},
                                  {6, measure_and_keep},
                                  {7, measure_and_keep},
                                  {8, measure_and_keep},
                                  {3, update, 1},
                                  {4, update, 1},
                                  {5, update_kept, 1},
                                  {6, update_kept, 1},
                                  {7, update_kept, 1},
                                  {8, update_kept, 1}});
}

TEST_CASE("update visits: chunks in memory take no slot, so more of the others are kept") {
    Example example({18});
    example.keep({});
    CHECK(example.plan.kept == std::vector<std::uint8_t>{0, 0, 0, 0, 0, 1, 1, 1, 1});
    example.keep({1, 3, 5, 7, 8});
    CHECK(example.plan.kept == std::vector<std::uint8_t>{1, 0, 1, 0, 1, 0, 1, 0, 0});
    CHECK(example.plan.reads_of(0) == 1);
    example.keep({1, 3, 5, 7});
    CHECK(example.plan.kept == std::vector<std::uint8_t>{0, 0, 1, 0, 1, 0, 1, 0, 1});
    CHECK(example.plan.reads_of(0) == 2);
}

TEST_CASE("update visits: a third pass waits until the second is over where its tensors reach") {
    Example example({3, 3, 2}, 3);  // edges at tiles 3, 6, 8: chunks 0-1, 1-2, 3
    example.keep({1});
    CHECK(example.plan.kept == std::vector<std::uint8_t>{1, 0, 1, 1});
    using enum VisitKind;
    CHECK(update_visits(example.order, example.plan, example.forward) ==
          std::vector<ChunkVisit>{{0, measure_and_keep, 0},
                                  {1, measure, 0},
                                  {0, measure_kept, 1},
                                  {2, measure_and_keep, 0},
                                  {1, measure, 1},
                                  {2, measure_kept, 1},
                                  {0, update_kept, 2},
                                  {1, update, 2},
                                  {2, update_kept, 2},
                                  {3, measure_and_keep, 0},
                                  {3, measure_kept, 1},
                                  {3, update_kept, 2}});
    CHECK(example.plan.reads_of(1) == 3);
}

TEST_CASE("update visits: never are more chunks kept than there are slots for") {
    for (const std::size_t passes : {2U, 3U}) {
        Example example({3, 5, 2, 7, 1, 1, 9, 4, 30, 2, 6}, passes);
        example.keep({2, 9, 14});
        std::set<std::uint64_t> kept;
        std::vector<std::set<std::uint64_t>> had(passes);
        for (const auto& [chunk, kind, pass] :
             update_visits(example.order, example.plan, example.forward)) {
            if (kind == VisitKind::measure_and_keep)
                kept.insert(chunk);
            CHECK(kept.size() <= most_kept_chunks);
            CHECK(is_kept(kind) == (kept.contains(chunk) && pass != 0));
            CHECK(is_update(kind) == (pass + 1 == passes));
            CHECK(had[pass].insert(chunk).second);
            CHECK((pass == 0 || had[pass - 1].contains(example.reach(chunk))));
            if (kind == VisitKind::update_kept)
                CHECK(kept.erase(chunk) == 1);
        }
        CHECK((kept.empty() && had.back().size() == example.plan.chunks));
    }
}

TEST_CASE("update visits: whole tensors are measured in the order of their elements alone") {
    Example example({4});
    example.keep({});
    CHECK_THROWS_AS(update_visits(example.order, example.plan, std::vector<std::uint64_t>{1, 0}),
                    std::logic_error);
}

}  // namespace spillway::offload::detail
