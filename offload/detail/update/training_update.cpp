// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/update/training_update.h"

#include <algorithm>
#include <span>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "cpu_optim/gradient_clip.h"

namespace spillway::offload::detail {
namespace {

constexpr const char* way_back =
    "nothing of it is committed: resume from the last commit with a smaller learning rate";

}  // namespace

TrainingUpdate::TrainingUpdate(const Context& context, UpdateRules rules)
    : context_(context), rules_(std::move(rules)) {}

void TrainingUpdate::begin() {
    context_.committer.before_update();
}

ChunkGradients TrainingUpdate::gradients(std::uint64_t chunk) {
    return context_.gradients.is_complete(chunk) ? ChunkGradients::given : ChunkGradients::awaited;
}

void TrainingUpdate::wait_for_gradients(std::uint64_t chunk) {
    context_.gradients.wait_complete(chunk);
}

void TrainingUpdate::measure(std::span<const ChunkPlanes> chunks, std::size_t pass) {
    settle(chunks, pass);
    const auto gradients = gradients_of(chunks);
    for_each_tile_in_turns(
        context_.threads, chunks, rules_.tiles_at_once(),
        [&](const ChunkPlanes& chunk, std::uint64_t index, std::size_t place) {
            measure_tile({pass, place}, chunk, index,
                         gradients[static_cast<std::size_t>(&chunk - chunks.data())] +
                             index * tile_elements);
        },
        [&] { rules_.end_turn(context_.threads, pass); });
}

void TrainingUpdate::settle(std::span<const ChunkPlanes> chunks, std::size_t pass) {
    try {
        for (const auto& chunk : chunks)
            rules_.settle(context_.store.order().tensors_in(
                              {chunk.tiles.begin * tile_elements, chunk.tiles.end * tile_elements}),
                          pass, [](TensorId) { return true; });
    } catch (const std::runtime_error& error) {
        throw std::runtime_error(fmt::format("{}; {}", error.what(), way_back));
    }
}

void TrainingUpdate::update(std::span<const ChunkPlanes> chunks, const Updated& updated) {
    settle(chunks, rules_.passes() - 1);
    const auto gradients = gradients_of(chunks);
    for_each_tile(
        context_.threads, chunks,
        [&](const ChunkPlanes& chunk, std::uint64_t index) {
            update_tile(chunk, index,
                        gradients[static_cast<std::size_t>(&chunk - chunks.data())] +
                            index * tile_elements);
        },
        [&](const ChunkPlanes& chunk) {
            context_.gradients.consumed(chunk.chunk);
            updated(chunk);
        });
}

/// Where each chunk's begins.
std::vector<float*> TrainingUpdate::gradients_of(std::span<const ChunkPlanes> chunks) const {
    std::vector<float*> gradients;
    for (const auto& chunk : chunks)
        gradients.push_back(chunk.spilled_gradient != nullptr
                                ? reinterpret_cast<float*>(chunk.spilled_gradient)
                                : context_.gradients.in_memory(chunk.chunk));
    return gradients;
}

void TrainingUpdate::end() {
    for (auto& steps : context_.tensor_steps)
        ++steps;
    context_.committer.after_update();
}

/// visit(tensor, part, run) for each tensor that has elements in the tile.
template <typename Visit>
void TrainingUpdate::for_each_part(const ChunkPlanes& chunk, std::uint64_t index,
                                   const float* gradient, const Visit& visit) const {
    const auto& order = context_.store.order();
    auto* const weight = reinterpret_cast<std::uint16_t*>(chunk.tile(Plane::weight, index));
    auto* const residue = reinterpret_cast<std::int16_t*>(chunk.tile(Plane::residue, index));
    const ElementRange tile{(chunk.tiles.begin + index) * tile_elements,
                            (chunk.tiles.begin + index + 1) * tile_elements};
    const auto span = order.tensors_in(tile);
    for (auto tensor = span.first; tensor < span.last; ++tensor) {
        const auto range = order.range(tensor);
        if (range.size() == 0)
            continue;
        const auto begin = static_cast<std::size_t>(std::max(range.begin, tile.begin) - tile.begin);
        const auto count =
            static_cast<std::size_t>(std::min(range.end, tile.end) - tile.begin) - begin;
        const cpu_optim::ElementwiseRun run{.elements = count,
                                            .weight = weight + begin,
                                            .residue = residue + begin,
                                            .gradient = gradient + begin};
        visit(tensor, TilePart{chunk, index, begin, tile.begin + begin - range.begin}, run);
    }
}

void TrainingUpdate::verify(const ChunkPlanes& chunk, std::uint64_t index,
                            const float* gradient) const {
    verify_staged(context_.store, chunk, index);
    if (chunk.spilled_gradient != nullptr && !chunk.verified)
        context_.spill->verify(context_.store.order(), chunk.tiles.begin + index,
                               std::as_bytes(std::span(gradient, tile_elements)));
}

/// In place: nobody else wants the gradient, and what is clamped already stays as it is.
void TrainingUpdate::clamp(float* gradient) const {
    if (context_.most_gradient)
        cpu_optim::clip_values(context_.threads.isa(), gradient, cpu_optim::GradientType::fp32,
                               tile_elements, *context_.most_gradient);
}

void TrainingUpdate::measure_tile(MeasuringPass at, const ChunkPlanes& chunk, std::uint64_t index,
                                  float* gradient) {
    verify(chunk, index, gradient);
    clamp(gradient);
    for_each_part(chunk, index, gradient,
                  [&](TensorId tensor, const TilePart& part, const cpu_optim::ElementwiseRun& run) {
                      rules_.measure(context_.threads.isa(), at, tensor, part, run);
                  });
}

void TrainingUpdate::update_tile(const ChunkPlanes& chunk, std::uint64_t index,
                                 float* gradient) const {
    verify(chunk, index, gradient);
    clamp(gradient);
    for_each_part(chunk, index, gradient,
                  [&](TensorId tensor, const TilePart& part, const cpu_optim::ElementwiseRun& run) {
                      const auto overflowed =
                          rules_.update(context_.threads.isa(), tensor,
                                        {.seed = context_.rounding_seed,
                                         .tensor = tensor,
                                         .step = context_.tensor_steps[tensor] + 1},
                                        part, run);
                      if (overflowed != 0)
                          throw std::runtime_error(fmt::format(
                              "the update of tensor '{}' gives {} weights too large for their bf16 "
                              "half (or NaN); {}",
                              context_.store.order().tensors()[tensor].name, overflowed, way_back));
                  });
    average(chunk, index);
    checksum_staged(chunk, index);
}

/// Of the whole tile: between tensors weights are 0, and so is their average.
void TrainingUpdate::average(const ChunkPlanes& chunk, std::uint64_t index) const {
    if (!context_.average)
        return;
    cpu_optim::update_average(
        context_.threads.isa(), *context_.average,
        {.elements = tile_elements,
         .weight = reinterpret_cast<const std::uint16_t*>(chunk.tile(Plane::weight, index)),
         .residue = reinterpret_cast<const std::int16_t*>(chunk.tile(Plane::residue, index)),
         .average = reinterpret_cast<float*>(chunk.tile(Plane::average, index))});
}

}  // namespace spillway::offload::detail
