// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>

#include "offload/activations.h"

namespace spillway::offload::detail {

/// What is copied, checksummed, read and written at a time: of an input, the last one shorter.
inline constexpr std::size_t activation_piece_bytes = std::size_t{512} << 10;
/// In flight at a time, so that a drive has enough to do while others are copied.
inline constexpr std::size_t activation_pieces = 8;

/// Of one input in host memory and on a drive: whole blocks of 4 KiB, for direct I/O.
[[nodiscard]] constexpr std::size_t activation_slot_bytes(const ActivationLayout& layout) noexcept {
    return (layout.bytes + 4095) / 4096 * 4096;
}
[[nodiscard]] constexpr std::size_t pieces_of_activation(const ActivationLayout& layout) noexcept {
    return (layout.bytes + activation_piece_bytes - 1) / activation_piece_bytes;
}

/// What a store takes: of one device.
struct ActivationNeeds {
    std::size_t resident_bytes = 0;  ///< of the inputs in host memory
    std::size_t staging_bytes = 0;   ///< through which those on a drive pass
    std::size_t table_bytes = 0;
    std::uint64_t disk_bytes = 0;
};
[[nodiscard]] ActivationNeeds activation_needs(const ActivationLayout& layout) noexcept;

}  // namespace spillway::offload::detail
