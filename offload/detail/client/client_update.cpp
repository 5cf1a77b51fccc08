// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/client/client_update.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace spillway::offload::detail {
namespace {

/// `first` elements into what `base` points at.
template <typename Element>
Element* element_at(void* base, std::uint64_t first) {
    return static_cast<Element*>(base) + first;
}

std::vector<TensorStep> steps_of(const ClientTensors& tensors, double gradient_scale) {
    std::vector<TensorStep> steps;
    for (const auto& tensor : tensors)
        steps.push_back({tensor.group, tensor.steps + 1, gradient_scale});
    return steps;
}

}  // namespace

ClientUpdate::ClientUpdate(const Context& context, std::shared_ptr<StepGradients> gradients,
                           const HyperGroups& groups, double gradient_scale)
    : context_(context),
      gradients_(std::move(gradients)),
      rules_(context.store.order(), groups, steps_of(context.tensors, gradient_scale),
             context.memory) {}

void ClientUpdate::begin() {
    if (context_.committer != nullptr)
        context_.committer->before_update();
}

ElementOrder::TensorSpan ClientUpdate::tensors_of(std::uint64_t chunk) const {
    const auto& order = context_.store.order();
    const auto tiles = context_.plan.chunk_range(chunk, order.tiles());
    return order.tensors_in({tiles.begin * tile_elements, tiles.end * tile_elements});
}

ChunkGradients ClientUpdate::gradients(std::uint64_t chunk) {
    const auto span = tensors_of(chunk);
    if (!gradients_->are_there(span.first, span.last))
        return ChunkGradients::awaited;
    for (auto tensor = span.first; tensor < span.last; ++tensor) {
        // Tensors without elements are not waited for, so not looked at before the end.
        if (context_.store.order().range(tensor).size() != 0 &&
            gradients_->of(tensor).data != nullptr)
            return ChunkGradients::given;
    }
    return ChunkGradients::none;
}

void ClientUpdate::wait_for_gradients(std::uint64_t chunk) {
    const auto span = tensors_of(chunk);
    gradients_->wait_for(span.first, span.last);
}

/// Of an empty tensor, whose gradient nobody waits for and may still come, it is not asked.
void ClientUpdate::settle(std::span<const ChunkPlanes> chunks, std::size_t pass) {
    for (const auto& chunk : chunks)
        rules_.settle(tensors_of(chunk.chunk), pass,
                      [this](TensorId tensor) { return gradients_->of(tensor).data != nullptr; });
}

void ClientUpdate::measure(std::span<const ChunkPlanes> chunks, std::size_t pass) {
    settle(chunks, pass);
    for_each_tile_in_turns(
        context_.threads, chunks, rules_.tiles_at_once(),
        [&](const ChunkPlanes& chunk, std::uint64_t index, std::size_t place) {
            verify_staged(context_.store, chunk, index);
            for_each_part(
                chunk, index, [&](TensorId tensor, const TilePart& part, const auto& run) {
                    rules_.measure(context_.threads.isa(), {pass, place}, tensor, part, run);
                });
        },
        [&] { rules_.end_turn(context_.threads, pass); });
}

void ClientUpdate::update(std::span<const ChunkPlanes> chunks, const Updated& updated) {
    settle(chunks, rules_.passes() - 1);
    for_each_tile(
        context_.threads, chunks,
        [&](const ChunkPlanes& chunk, std::uint64_t index) { update_tile(chunk, index); }, updated);
}

void ClientUpdate::update_tile(const ChunkPlanes& chunk, std::uint64_t index) const {
    verify_staged(context_.store, chunk, index);
    for_each_part(chunk, index, [&](TensorId tensor, const TilePart& part, const auto& run) {
        // What is not finite goes into the weights, as the rule of the step allows.
        static_cast<void>(rules_.update(context_.threads.isa(), tensor,
                                        {.seed = context_.rounding_seed,
                                         .tensor = tensor,
                                         .step = context_.tensors[tensor].steps + 1},
                                        part, run));
        average(tensor, part, run);
    });
    checksum_staged(chunk, index);
}

/// Of the new weights, as often as the tensor itself was updated.
void ClientUpdate::average(TensorId tensor, const TilePart& part,
                           const cpu_optim::ElementwiseRun& run) const {
    if (!context_.average)
        return;
    const auto coefficients = context_.average->coefficients(context_.tensors[tensor].steps + 1);
    if (!coefficients)
        return;
    cpu_optim::update_average(
        context_.threads.isa(), *coefficients,
        {.elements = run.elements,
         .master = run.master,
         .weight = run.weight,
         .residue = run.residue,
         .average = element_at<float>(part.chunk.tile(Plane::average, part.index), part.in_tile)});
}

/// visit(tensor, part, run) for each tensor that has elements in the tile and a gradient.
template <typename Visit>
void ClientUpdate::for_each_part(const ChunkPlanes& chunk, std::uint64_t index,
                                 const Visit& visit) const {
    const auto tile_begin = (chunk.tiles.begin + index) * tile_elements;
    const auto span = context_.store.order().tensors_in({tile_begin, tile_begin + tile_elements});
    for (auto tensor = span.first; tensor < span.last; ++tensor) {
        const auto whole = context_.store.order().range(tensor);
        const auto begin = std::max(whole.begin, tile_begin);
        const auto end = std::min(whole.end, tile_begin + tile_elements);
        if (begin >= end || gradients_->of(tensor).data == nullptr)
            continue;
        const TilePart part{chunk, index, begin - tile_begin, begin - whole.begin};
        visit(tensor, part, run_of(tensor, part, static_cast<std::size_t>(end - begin)));
    }
}

cpu_optim::ElementwiseRun ClientUpdate::run_of(TensorId tensor, const TilePart& part,
                                               std::size_t elements) const {
    const auto& client = context_.tensors[tensor];
    const auto gradient = gradients_->of(tensor);
    cpu_optim::ElementwiseRun run;
    run.elements = elements;
    if (client.type == ParameterType::fp32) {
        run.master = element_at<float>(client.data, part.in_tensor);
    } else {
        run.weight = element_at<std::uint16_t>(client.data, part.in_tensor);
        run.residue =
            element_at<std::int16_t>(part.chunk.tile(Plane::residue, part.index), part.in_tile);
        if (client.fresh_residue)
            std::fill_n(run.residue, run.elements, std::int16_t{0});
    }
    run.gradient = static_cast<const std::byte*>(gradient.data) +
                   part.in_tensor * cpu_optim::gradient_bytes(gradient.type);
    run.gradient_type = gradient.type;
    return run;
}

void ClientUpdate::end() {
    // Gradients of tensors without elements may still come: they count as steps, too.
    gradients_->wait_closed();
    for (TensorId tensor = 0; tensor < context_.tensors.size(); ++tensor) {
        if (gradients_->of(tensor).data == nullptr)
            continue;
        ++context_.tensors[tensor].steps;
        context_.tensors[tensor].fresh_residue = false;
    }
    if (context_.committer != nullptr)
        context_.committer->after_update();
}

}  // namespace spillway::offload::detail
