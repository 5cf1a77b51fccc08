// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

namespace spillway::offload::detail {

/// What a pass over many items that lie on several drives moves next, through a few slots: each
/// drive in the items' order, all drives at once, so that none waits for a slower one. While
/// several drives have items left none takes more than its part of the slots. With one drive: the
/// items in order. Not thread-safe.
class DriveLanes {
  public:
    /// At least one slot a drive.
    DriveLanes(std::size_t drives, std::size_t slots);

    /// A new pass; every slot is free. `drives`: where each item lies.
    void begin(std::span<const std::size_t> drives);
    struct Turn {
        std::size_t item = 0;
        std::size_t drive = 0;  ///< whose part the slot is counted in
    };
    /// For a free slot; none: no slot is free, or nothing is left but items of drives that have
    /// their part.
    [[nodiscard]] std::optional<Turn> take();
    /// A slot taken for an item of `drive`, by its turn, is free again: wherever the item lies now.
    void give_back(std::size_t drive) noexcept {
        --lanes_[drive].taken;
        ++free_slots_;
    }

  private:
    struct Lane {
        std::deque<std::size_t> items;
        std::size_t taken = 0;
    };
    std::vector<Lane> lanes_;
    std::size_t slots_;
    std::size_t free_slots_ = 0;
};

}  // namespace spillway::offload::detail
