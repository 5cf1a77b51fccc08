// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/settings/train_settings.h"

namespace spillway::engine {

/// How fast this machine updates parameters. 0: not measured.
struct UpdateSpeed {
    double parameters_per_s = 0;      ///< by a run's own optimizer, everything in memory
    double checksum_bytes_per_s = 0;  ///< of what is in the cache
};

/// Some steps of the optimizer, state format and threads of resolved settings, through the memory
/// manager, over as many of `parameters` as `memory_bytes` hold with their gradients. Takes half a
/// second or so, and gives the memory back.
[[nodiscard]] UpdateSpeed calibrate_update(const TrainSettings& settings, std::uint64_t parameters,
                                           std::size_t memory_bytes);

}  // namespace spillway::engine
