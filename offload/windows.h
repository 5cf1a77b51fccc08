// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>

namespace spillway::offload {

/// How far work runs ahead of whom it is for, in chunks. Placement only: it changes no bit of the
/// result, but each chunk takes host memory.
struct Windows {
    std::size_t update_slots = 4;    ///< of each drive, under way between it and the update: read
                                     ///< ahead, read, computed, written back
    std::size_t weight_buffers = 4;  ///< of weights on their way from a drive to the device

    friend bool operator==(const Windows&, const Windows&) = default;
};

/// More than helps any drive, few enough for every size to be computed.
inline constexpr std::size_t most_window = 64;

/// Throws std::invalid_argument unless each is from 1 to most_window.
void check_windows(const Windows& windows);

}  // namespace spillway::offload
