// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/update/update_visits.h"

#include <algorithm>
#include <array>
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

/// Of an update of so many passes: the last chunk that is read before the last pass over each.
std::vector<std::uint64_t> read_until(const std::vector<std::uint64_t>& reach, std::size_t passes) {
    auto until = reach;
    for (std::size_t pass = 2; pass < passes; ++pass) {
        for (auto& chunk : until)
            chunk = reach[chunk];
    }
    return until;
}

VisitKind kind_of(bool kept, std::size_t pass, std::size_t passes) {
    if (pass + 1 == passes)
        return kept ? VisitKind::update_kept : VisitKind::update;
    if (!kept)
        return VisitKind::measure;
    return pass == 0 ? VisitKind::measure_and_keep : VisitKind::measure_kept;
}

}  // namespace

void check_passes(std::size_t passes) {
    if (passes == 0 || passes > most_passes)
        throw std::invalid_argument(fmt::format(
            "an update of {} passes is planned; 1 to {} are known", passes, most_passes));
}

std::vector<std::uint8_t> kept_between_passes(
    const ElementOrder& order, const OffloadPlan& plan,
    const std::function<bool(std::uint64_t chunk)>& passes_through) {
    std::vector<std::uint64_t> read_before(plan.chunks + 1, 0);
    for (std::uint64_t chunk = 0; chunk < plan.chunks; ++chunk)
        read_before[chunk + 1] = read_before[chunk] + (passes_through(chunk) ? 1 : 0);
    const auto until = read_until(reaches(order, plan), plan.passes);
    std::vector<std::uint8_t> kept(plan.chunks, 0);
    for (std::uint64_t chunk = 0; chunk < plan.chunks; ++chunk) {
        const auto read = read_before[until[chunk] + 1] - read_before[chunk];
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
    if (plan.passes > most_passes || !std::ranges::is_sorted(chunk_order))
        throw std::logic_error(
            "an update of several passes takes two or three, over chunks in the order of their "
            "elements");
    const auto reach = reaches(order, plan);
    std::array<std::uint64_t, most_passes> next{};  // by pass: the first chunk that had it not
    const auto visit = [&](std::size_t pass) {
        const auto chunk = next[pass]++;
        visits.push_back({chunk, kind_of(plan.kept[chunk] != 0, pass, plan.passes), pass});
    };
    while (next[0] < plan.chunks) {
        visit(0);
        for (std::size_t pass = 1; pass < plan.passes; ++pass) {
            while (next[pass] < plan.chunks && reach[next[pass]] < next[pass - 1])
                visit(pass);
        }
    }
    return visits;
}

}  // namespace spillway::offload::detail
