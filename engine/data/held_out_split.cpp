// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/data/held_out_split.h"

#include <algorithm>
#include <bit>

namespace spillway::engine {
namespace {

/// Places for a window in a stretch.
std::uint64_t places(std::uint64_t stretch_bytes, std::size_t length) noexcept {
    return stretch_bytes < length ? 0 : stretch_bytes - length + 1;
}

}  // namespace

HeldOutSplit::HeldOutSplit(std::uint64_t total_bytes) noexcept
    : total_bytes_(total_bytes),
      block_bytes_(std::clamp<std::uint64_t>(std::bit_floor(total_bytes / least_blocks), 1,
                                             longest_block_bytes)),
      groups_(total_bytes / (blocks_per_group * block_bytes_)) {}

std::uint64_t HeldOutSplit::least_total_bytes(std::size_t length) noexcept {
    return length > longest_block_bytes ? 0 : least_blocks * std::bit_ceil(length);
}

std::uint64_t HeldOutSplit::training_windows(std::size_t length) const noexcept {
    const std::uint64_t last_stretch = total_bytes_ - groups_ * group_bytes();
    return groups_ * places(group_bytes() - block_bytes_, length) + places(last_stretch, length);
}

std::uint64_t HeldOutSplit::training_offset(std::uint64_t index,
                                            std::size_t length) const noexcept {
    const std::uint64_t per_group = places(group_bytes() - block_bytes_, length);
    const std::uint64_t group = per_group == 0 ? groups_ : std::min(index / per_group, groups_);
    return group * group_bytes() + (index - group * per_group);
}

std::uint64_t HeldOutSplit::held_out_windows(std::size_t length) const noexcept {
    return length == 0 ? 0 : groups_ * (block_bytes_ / length);
}

std::uint64_t HeldOutSplit::held_out_offset(std::uint64_t index,
                                            std::size_t length) const noexcept {
    const std::uint64_t per_block = block_bytes_ / length;
    return (index / per_block + 1) * group_bytes() - block_bytes_ + index % per_block * length;
}

}  // namespace spillway::engine
