// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/weights/gather_schedule.h"

#include <string>

#include <catch2/catch.hpp>

#include "offload/detail/placement/unit_share.h"

using namespace spillway::offload;
using namespace spillway::offload::detail;

namespace {

/// "unit@slot", with ! where it is fetched and ? where it is gathered from kept shares.
std::string text(const std::vector<GatherUse>& schedule) {
    std::string all;
    for (const auto& use : schedule) {
        all += (all.empty() ? "" : " ") + std::to_string(use.unit) + '@' + std::to_string(use.slot);
        all += use.fetches ? "!" : use.gathers ? "?" : "";
    }
    return all;
}

/// Unit 0 has a slot of its own, units 1 to 3 share two.
const std::vector<UnitSlotClass> classes{{0, 1, {0}}, {0, 2, {1, 2, 3}}};
const std::vector<std::size_t> there_and_back{0, 1, 2, 3, 0, 3, 2, 1};

}  // namespace

TEST_CASE("a unit that is still in its slot is neither gathered nor fetched") {
    const std::vector<std::uint8_t> none(4, 0);
    CHECK(text(gather_schedule(there_and_back, classes, none)) ==
          "0@0! 1@1! 2@2! 3@1! 0@0 3@1 2@2 1@1!");
}

TEST_CASE("a share that is kept is fetched once and gathered again") {
    const std::vector<std::uint8_t> kept{0, 1, 0, 0};
    CHECK(text(gather_schedule(there_and_back, classes, kept)) ==
          "0@0! 1@1! 2@2! 3@1! 0@0 3@1 2@2 1@1?");
}

TEST_CASE("the shares of a unit are all of it, once, in whole tiles of the order") {
    // Units of many tiles, of fewer than ranks, of none, each beginning within a tile.
    const ElementOrder order({{"first", {100}, 0, 1},
                              {"large", {7 * tile_elements + 5}, 0, 1},
                              {"small", {tile_elements}, 0, 1},
                              {"empty", {0}, 0, 1},
                              {"last", {1}, 0, 1}});
    for (unsigned ranks = 1; ranks <= 9; ++ranks) {
        for (TensorId tensor = 0; tensor < order.tensors().size(); ++tensor) {
            CAPTURE(ranks, order.tensors()[tensor].name);
            const UnitShare share(order, {tensor, 1}, ranks);
            auto at = share.elements().begin;
            for (unsigned rank = 0; rank < ranks; ++rank) {
                const auto own = share.of(rank);
                if (own.size() == 0)
                    continue;
                CHECK(own.begin == at);
                CHECK((own.begin == share.elements().begin || own.begin % tile_elements == 0));
                // Its place among the gathered shares is its place in the unit.
                const auto place =
                    rank * (share.share_bytes() / sizeof(float)) + share.offset_of(rank);
                CHECK(place == share.first_element() + (own.begin - share.elements().begin));
                CHECK((share.offset_of(rank) + own.size()) * sizeof(float) <= share.share_bytes());
                at = own.end;
            }
            CHECK(at == share.elements().end);
            CHECK(share.gathered_bytes() == ranks * share.share_bytes());
        }
    }
}
