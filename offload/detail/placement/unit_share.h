// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "offload/element_order.h"

namespace spillway::offload::detail {

/// How a unit is shared out to ranks: whole tiles, the same number for each but the last ones,
/// which may have fewer or none. Immutable.
class UnitShare {
  public:
    UnitShare(const ElementOrder& order, const Unit& unit, unsigned ranks) noexcept
        : elements_(unit_range(order, unit)),
          ranks_(ranks),
          first_tile_(elements_.begin / tile_elements),
          tiles_((elements_.end + tile_elements - 1) / tile_elements - first_tile_),
          share_tiles_((tiles_ + ranks - 1) / ranks) {}

    [[nodiscard]] ElementRange elements() const noexcept { return elements_; }
    /// Of the largest share, in fp32.
    [[nodiscard]] std::size_t share_bytes() const noexcept {
        return static_cast<std::size_t>(share_tiles_ * tile_elements) * sizeof(float);
    }
    /// Of all shares behind each other, each with the room of the largest.
    [[nodiscard]] std::size_t gathered_bytes() const noexcept { return share_bytes() * ranks_; }
    /// Where the unit's first element lies among its gathered shares.
    [[nodiscard]] std::size_t first_element() const noexcept {
        return static_cast<std::size_t>(elements_.begin % tile_elements);
    }

    /// The unit's elements in the share of `rank`, in the global order; may be empty.
    [[nodiscard]] ElementRange of(unsigned rank) const noexcept {
        const auto begin = begin_of(rank);
        return {std::clamp(begin, elements_.begin, elements_.end),
                std::clamp(begin + share_tiles_ * tile_elements, elements_.begin, elements_.end)};
    }
    /// Where of(rank).begin lies in the share's room.
    [[nodiscard]] std::size_t offset_of(unsigned rank) const noexcept {
        const auto range = of(rank);
        return range.size() == 0 ? 0 : static_cast<std::size_t>(range.begin - begin_of(rank));
    }

  private:
    [[nodiscard]] std::uint64_t begin_of(unsigned rank) const noexcept {
        return (first_tile_ + rank * share_tiles_) * tile_elements;
    }

    ElementRange elements_;
    unsigned ranks_;
    std::uint64_t first_tile_, tiles_, share_tiles_;
};

}  // namespace spillway::offload::detail
