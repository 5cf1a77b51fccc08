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
    measure,           ///< pass 1 of two: looked at, then forgotten
    measure_and_keep,  ///< pass 1: looked at, and kept in its slot until pass 2
    update_kept,       ///< pass 2 of such a chunk
};
struct ChunkVisit {
    std::uint64_t chunk = 0;
    VisitKind kind = VisitKind::update;

    bool operator==(const ChunkVisit&) const = default;
};

/// Chunks that an update of two passes keeps in slots at a time.
inline constexpr std::size_t most_kept_chunks = 4;
/// What they take of an update of so many passes.
[[nodiscard]] constexpr std::size_t kept_slots_of(std::size_t passes) noexcept {
    return passes == 1 ? 0 : most_kept_chunks;
}
/// Throws std::invalid_argument unless an update of so many passes is known here.
void check_passes(std::size_t passes);

/// By chunk: whether it stays in its slot between the two passes, because all that its tensors
/// reach into are read within most_kept_chunks. `passes_through`: whether a chunk needs a slot.
[[nodiscard]] std::vector<std::uint8_t> kept_between_passes(
    const ElementOrder& order, const OffloadPlan& plan,
    const std::function<bool(std::uint64_t chunk)>& passes_through);

/// All that one update does, in order. With one pass: `chunk_order`. With two, which takes all
/// chunks in the order of their elements: each chunk is updated as soon as the whole of its tensors
/// is measured.
[[nodiscard]] std::vector<ChunkVisit> update_visits(const ElementOrder& order,
                                                    const OffloadPlan& plan,
                                                    std::span<const std::uint64_t> chunk_order);

}  // namespace spillway::offload::detail
