// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/fused_update.h"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>
#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

namespace spillway::offload::detail {

class FusedUpdate::Arena {
  public:
    explicit Arena(std::size_t threads) : arena_(static_cast<int>(threads)) {}

    void for_each(std::uint64_t count, const std::function<void(std::uint64_t)>& body) {
        // Isolated, so that a thread that waits here never picks up a stranger's task.
        arena_.execute([&] {
            tbb::this_task_arena::isolate([&] {
                tbb::parallel_for(
                    tbb::blocked_range<std::uint64_t>(0, count, 1),
                    [&](const tbb::blocked_range<std::uint64_t>& range) {
                        for (auto i = range.begin(); i != range.end(); ++i)
                            body(i);
                    },
                    tbb::simple_partitioner());
            });
        });
    }

  private:
    tbb::task_arena arena_;
};

FusedUpdate::FusedUpdate(const TileStore& store, const GradientSpill* spill, std::size_t threads,
                         cpu_optim::Isa isa)
    : store_(store), spill_(spill), isa_(isa), arena_(std::make_unique<Arena>(threads)) {}

FusedUpdate::~FusedUpdate() = default;

void FusedUpdate::for_each(std::uint64_t count, const std::function<void(std::uint64_t)>& body) {
    arena_->for_each(count, body);
}

void FusedUpdate::run(const ChunkPlanes& chunk, const UpdateCoefficients& coefficients) {
    arena_->for_each(chunk.tiles.size(),
                     [&](std::uint64_t index) { update_tile(chunk, index, coefficients); });
}

void FusedUpdate::verify_tile(const ChunkPlanes& chunk, std::uint64_t index) const {
    const auto tile = chunk.tiles.begin + index;
    for (const auto plane : all_planes) {
        if (chunk.on_drive[index_of(plane)])
            store_.verify(
                plane, tile,
                {chunk.data[index_of(plane)] + index * tile_bytes(plane), tile_bytes(plane)});
    }
    if (chunk.gradient_was_spilled)
        spill_->verify(
            store_.order(), tile,
            std::as_bytes(std::span(chunk.gradient + index * tile_elements, tile_elements)));
}

void FusedUpdate::update_tile(const ChunkPlanes& chunk, std::uint64_t index,
                              const UpdateCoefficients& coefficients) const {
    verify_tile(chunk, index);
    const auto at = [&](Plane plane) {
        return chunk.data[index_of(plane)] + index * tile_bytes(plane);
    };
    auto* const weight = reinterpret_cast<std::uint16_t*>(at(Plane::weight));
    auto* const residue = reinterpret_cast<std::int16_t*>(at(Plane::residue));
    auto* const m = reinterpret_cast<float*>(at(Plane::m));
    auto* const v = reinterpret_cast<float*>(at(Plane::v));
    const auto* const gradient = chunk.gradient + index * tile_elements;

    const auto& order = store_.order();
    const ElementRange tile{(chunk.tiles.begin + index) * tile_elements,
                            (chunk.tiles.begin + index + 1) * tile_elements};
    const auto span = order.tensors_in(tile);
    for (auto tensor = span.first; tensor < span.last; ++tensor) {
        const auto range = order.range(tensor);
        const auto begin = static_cast<std::size_t>(std::max(range.begin, tile.begin) - tile.begin);
        const auto count =
            static_cast<std::size_t>(std::min(range.end, tile.end) - tile.begin) - begin;
        const auto overflowed = cpu_optim::adamw_update(isa_, coefficients[tensor],
                                                        {{weight + begin, count},
                                                         {residue + begin, count},
                                                         {m + begin, count},
                                                         {v + begin, count},
                                                         {gradient + begin, count}});
        if (overflowed != 0)
            throw std::runtime_error(
                fmt::format("the update of tensor '{}' gives {} weights too large for their bf16 "
                            "half (or NaN); nothing of it is "
                            "committed: resume from the last commit with a smaller learning rate",
                            order.tensors()[tensor].name, overflowed));
    }
    for (const auto plane : all_planes) {
        if (chunk.on_drive[index_of(plane)])
            chunk.checksums[index_of(plane)][index] = tile_checksum({at(plane), tile_bytes(plane)});
    }
}

}  // namespace spillway::offload::detail
