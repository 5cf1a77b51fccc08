// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "offload/detail/threads/monitor.h"

namespace spillway::offload::detail {

/// Where a chunk stands in an update.
enum class ChunkState : std::uint8_t {
    at_rest,       ///< its planes hold its version; readers may take them
    updating,      ///< the fused pass runs
    writing_back,  ///< the new planes are on their way to the drive
};

/// Legal moves, [from][to].
inline constexpr std::array<std::array<bool, 3>, 3> legal_moves{{
    /* at_rest      */ {{false, true, false}},
    /* updating     */ {{true, false, true}},
    /* writing_back */ {{true, false, false}},
}};

/// The version (the update it holds) and state of every chunk. Guarded by the monitor.
class ChunkBoard {
  public:
    ChunkBoard(Monitor& monitor, std::uint64_t chunks);

    /// Every chunk at rest at `version`: after initialisation or recovery.
    void reset(std::uint64_t version);
    /// Throws std::logic_error on a move that is not legal.
    void move(std::uint64_t chunk, ChunkState to);
    /// The chunk is at rest at `version`, and readers may know.
    void publish(std::uint64_t chunk, std::uint64_t version);

    /// Whether a reader may take the weights of `chunk` at `version`.
    [[nodiscard]] bool readable(const Monitor::Lock&, std::uint64_t chunk,
                                std::uint64_t version) const noexcept {
        return versions_[chunk] == version && states_[chunk] == ChunkState::at_rest;
    }

  private:
    void move_locked(std::uint64_t chunk, ChunkState to);

    Monitor& monitor_;
    std::vector<std::uint64_t> versions_;
    std::vector<ChunkState> states_;
};

}  // namespace spillway::offload::detail
