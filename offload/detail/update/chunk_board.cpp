// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/update/chunk_board.h"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

namespace spillway::offload::detail {

ChunkBoard::ChunkBoard(Monitor& monitor, std::uint64_t chunks)
    : monitor_(monitor), versions_(chunks, 0), states_(chunks, ChunkState::at_rest) {}

void ChunkBoard::reset(std::uint64_t version) {
    const auto lock = monitor_.lock();
    std::fill(versions_.begin(), versions_.end(), version);
    std::fill(states_.begin(), states_.end(), ChunkState::at_rest);
    monitor_.notify();
}

void ChunkBoard::move_locked(std::uint64_t chunk, ChunkState to) {
    const auto from = states_[chunk];
    if (!legal_moves[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)])
        throw std::logic_error(fmt::format("chunk {} may not move from state {} to {}", chunk,
                                           static_cast<int>(from), static_cast<int>(to)));
    states_[chunk] = to;
}

void ChunkBoard::move(std::uint64_t chunk, ChunkState to) {
    const auto lock = monitor_.lock();
    move_locked(chunk, to);
}

void ChunkBoard::publish(std::uint64_t chunk, std::uint64_t version) {
    const auto lock = monitor_.lock();
    move_locked(chunk, ChunkState::at_rest);
    versions_[chunk] = version;
    monitor_.notify();
}

}  // namespace spillway::offload::detail
