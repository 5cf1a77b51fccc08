// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "offload/plan.h"

namespace spillway::offload::detail {

/// What an update does when it comes to a chunk.
enum class VisitKind : std::uint8_t {
    update,            ///< its planes come, are updated, and go
    measure,           ///< a pass before the last: looked at, then forgotten
    measure_and_keep,  ///< pass 1: looked at, and kept in its slot until the last pass
    measure_kept,      ///< a later one of such a chunk, but not the last
    update_kept,       ///< the last one
};
struct ChunkVisit {
    std::uint64_t chunk = 0;
    VisitKind kind = VisitKind::update;
    std::size_t pass = 0;  ///< from 0

    bool operator==(const ChunkVisit&) const = default;
};

/// Whether a chunk is in a slot already, since the first pass over it.
[[nodiscard]] constexpr bool is_kept(VisitKind kind) noexcept {
    return kind == VisitKind::measure_kept || kind == VisitKind::update_kept;
}
/// Whether it is the last pass.
[[nodiscard]] constexpr bool is_update(VisitKind kind) noexcept {
    return kind == VisitKind::update || kind == VisitKind::update_kept;
}

/// Most passes of an update that are known here.
inline constexpr std::size_t most_passes = 3;
/// Chunks that an update of several passes keeps in slots at a time.
inline constexpr std::size_t most_kept_chunks = 4;
/// What they take of an update of so many passes.
[[nodiscard]] constexpr std::size_t kept_slots_of(std::size_t passes) noexcept {
    return passes == 1 ? 0 : most_kept_chunks;
}
/// Throws std::invalid_argument unless an update of so many passes is known here.
void check_passes(std::size_t passes);

/// By chunk: whether it stays in its slot between its passes, because all that is read until the
/// last one is within most_kept_chunks: what its tensors reach into, and with three passes what
/// those chunks' tensors reach into. `passes_through`: whether a chunk needs a slot.
[[nodiscard]] std::vector<std::uint8_t> kept_between_passes(
    const ElementOrder& order, const OffloadPlan& plan,
    const std::function<bool(std::uint64_t chunk)>& passes_through);

/// All that one update does, in order. With one pass: `chunk_order`. With more, which take all
/// chunks in the order of their elements: each chunk's next pass comes as soon as the whole of its
/// tensors had the one before.
[[nodiscard]] std::vector<ChunkVisit> update_visits(const ElementOrder& order,
                                                    const OffloadPlan& plan,
                                                    std::span<const std::uint64_t> chunk_order);

}  // namespace spillway::offload::detail
