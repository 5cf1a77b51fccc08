// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/client_update.h"

#include <algorithm>
#include <map>
#include <utility>

#include "offload/detail/state_update.h"

namespace spillway::offload::detail {
namespace {

/// `first` elements into what `base` points at.
template <typename Element>
Element* element_at(void* base, std::uint64_t first) {
    return static_cast<Element*>(base) + first;
}

}  // namespace

ClientUpdate::ClientUpdate(const Context& context, std::shared_ptr<StepGradients> gradients,
                           const std::vector<cpu_optim::HyperParameters>& groups,
                           double gradient_scale)
    : context_(context), gradients_(std::move(gradients)) {
    std::map<std::pair<std::uint32_t, std::uint64_t>, std::size_t> made;
    for (const auto& tensor : context_.tensors) {
        const auto [found, is_new] =
            made.try_emplace({tensor.group, tensor.steps + 1}, coefficients_.size());
        if (is_new)
            coefficients_.push_back(cpu_optim::make_coefficients(groups.at(tensor.group),
                                                                 tensor.steps + 1, gradient_scale));
        coefficients_of_.push_back(found->second);
    }
}

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

void ClientUpdate::update(std::span<const ChunkPlanes> chunks, const Updated& updated) {
    for_each_tile(
        context_.threads, chunks,
        [&](const ChunkPlanes& chunk, std::uint64_t index) { update_tile(chunk, index); }, updated);
}

void ClientUpdate::update_tile(const ChunkPlanes& chunk, std::uint64_t index) const {
    verify_staged(context_.store, chunk, index);
    const auto first = (chunk.tiles.begin + index) * tile_elements;
    const auto span = context_.store.order().tensors_in({first, first + tile_elements});
    for (auto tensor = span.first; tensor < span.last; ++tensor)
        update_part(chunk, index, tensor);
    checksum_staged(chunk, index);
}

/// The part of `tensor` that lies in one tile, if it has elements and a gradient.
void ClientUpdate::update_part(const ChunkPlanes& chunk, std::uint64_t index,
                               TensorId tensor) const {
    const auto tile_begin = (chunk.tiles.begin + index) * tile_elements;
    const auto whole = context_.store.order().range(tensor);
    const auto begin = std::max(whole.begin, tile_begin);
    const auto end = std::min(whole.end, tile_begin + tile_elements);
    if (begin >= end)
        return;
    const auto gradient = gradients_->of(tensor);
    if (gradient.data == nullptr)
        return;
    const auto in_tile = begin - tile_begin;
    const auto in_tensor = begin - whole.begin;
    const auto& client = context_.tensors[tensor];

    cpu_optim::ElementwiseRun run;
    run.elements = static_cast<std::size_t>(end - begin);
    if (client.type == ParameterType::fp32) {
        run.master = element_at<float>(client.data, in_tensor);
    } else {
        run.weight = element_at<std::uint16_t>(client.data, in_tensor);
        run.residue = element_at<std::int16_t>(chunk.tile(Plane::residue, index), in_tile);
        if (client.fresh_residue)
            std::fill_n(run.residue, run.elements, std::int16_t{0});
    }
    run.gradient = static_cast<const std::byte*>(gradient.data) +
                   in_tensor * cpu_optim::gradient_bytes(gradient.type);
    run.gradient_type = gradient.type;
    // What is not finite goes into the weights, as the rule of the step allows.
    static_cast<void>(update_tile_part(
        context_.threads.isa(), coefficients_[coefficients_of_[tensor]],
        {.seed = context_.rounding_seed, .tensor = tensor, .step = client.steps + 1},
        {chunk, index, in_tile, in_tensor}, run));
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
