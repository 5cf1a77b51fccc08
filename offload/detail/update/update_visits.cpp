// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/update/update_visits.h"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

namespace spillway::offload::detail {
namespace {

/// By chunk: the last one that a tensor of it has elements in.
std::vector<std::uint64_t> reaches(const ElementOrder& order, const OffloadPlan& plan) {
    const auto chunk_elements = plan.chunk_tiles * tile_elements;
    std::vector<std::uint64_t> last(plan.chunks);
    for (std::uint64_t chunk = 0; chunk < plan.chunks; ++chunk) {
        const auto begin = chunk * chunk_elements;
        const auto tensors = order.tensors_in({begin, begin + chunk_elements});
        last[chunk] = chunk;
        for (auto tensor = tensors.first; tensor < tensors.last; ++tensor) {
            const auto range = order.range(tensor);
            if (range.size() != 0)
                last[chunk] = std::max(last[chunk], (range.end - 1) / chunk_elements);
        }
    }
    return last;
}

}  // namespace

void check_passes(std::size_t passes) {
    if (passes == 0 || passes > 2)
        throw std::invalid_argument(
            fmt::format("an update of {} passes is planned; 1 and 2 are known", passes));
}

std::vector<std::uint8_t> kept_between_passes(
    const ElementOrder& order, const OffloadPlan& plan,
    const std::function<bool(std::uint64_t chunk)>& passes_through) {
    std::vector<std::uint64_t> read_before(plan.chunks + 1, 0);
    for (std::uint64_t chunk = 0; chunk < plan.chunks; ++chunk)
        read_before[chunk + 1] = read_before[chunk] + (passes_through(chunk) ? 1 : 0);
    const auto last = reaches(order, plan);
    std::vector<std::uint8_t> kept(plan.chunks, 0);
    for (std::uint64_t chunk = 0; chunk < plan.chunks; ++chunk) {
        const auto read = read_before[last[chunk] + 1] - read_before[chunk];
        if (passes_through(chunk) && read <= most_kept_chunks)
            kept[chunk] = 1;
    }
    return kept;
}

std::vector<ChunkVisit> update_visits(const ElementOrder& order, const OffloadPlan& plan,
                                      std::span<const std::uint64_t> chunk_order) {
    std::vector<ChunkVisit> visits;
    if (plan.passes == 1) {
        for (const auto chunk : chunk_order)
            visits.push_back({chunk, VisitKind::update});
        return visits;
    }
    if (plan.passes != 2 || !std::ranges::is_sorted(chunk_order))
        throw std::logic_error(
            "an update of several passes takes two, over chunks in the order of their elements");
    const auto last = reaches(order, plan);
    std::uint64_t updated = 0;
    for (std::uint64_t chunk = 0; chunk < plan.chunks; ++chunk) {
        const bool kept = plan.kept[chunk] != 0;
        visits.push_back({chunk, kept ? VisitKind::measure_and_keep : VisitKind::measure});
        for (; updated < plan.chunks && last[updated] <= chunk; ++updated) {
            const bool was_kept = plan.kept[updated] != 0;
            visits.push_back({updated, was_kept ? VisitKind::update_kept : VisitKind::update});
        }
    }
    return visits;
}

}  // namespace spillway::offload::detail
