// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cpu_optim/moment_codec.h"
#include "cpu_optim/split_master.h"
#include "offload/detail/client/tensor_engine.h"

namespace spillway::offload::detail {
namespace {

const char* type_name(ParameterType type) {
    return type == ParameterType::fp32 ? "fp32" : "bf16";
}

}  // namespace

std::uint64_t TensorEngine::steps(TensorId tensor) {
    check_tensor(tensor);
    wait();
    return tensors_[tensor].steps;
}

void TensorEngine::set_steps(TensorId tensor, std::uint64_t steps) {
    check_tensor(tensor);
    check_ready("set_steps");
    wait();
    tensors_[tensor].steps = steps;
}

void TensorEngine::read_access(const std::function<void()>& read) {
    check_ready("reading state");
    wait();
    try {
        read();
    } catch (...) {
        monitor_.poison(std::current_exception());
        throw;
    }
}

void TensorEngine::write_access(std::function<void()> write) {
    check_ready("writing state");
    wait();
    pipeline_->edit(std::move(write));
    if (committer_)
        committer_->after_update();
}

void TensorEngine::read_state(TensorId tensor, std::size_t plane, std::uint64_t first,
                              std::span<float> out) {
    check_state_plane(plane);
    const auto range = part(tensor, first, out.size());
    read_access([&] { state_access(tensor, plane).read(range, out); });
}

void TensorEngine::write_state(TensorId tensor, std::size_t plane, std::uint64_t first,
                               std::span<const float> values) {
    check_state_plane(plane);
    const auto range = part(tensor, first, values.size());
    check_whole_blocks(tensor, first, values.size());
    write_access([&] { state_access(tensor, plane).write(range, values); });
}

StateAccess TensorEngine::state_access(TensorId tensor, std::size_t plane) {
    // Lossy formats keep as many planes as have a kind; to fp32 it is all one.
    const auto kinds = groups_.moment_kinds(tensors_[tensor].group);
    return {*access_, plan_.update.planes, plane, kinds[std::min(plane, kinds.size() - 1)]};
}

std::span<float> TensorEngine::state_view(TensorId tensor, std::size_t plane) {
    check_tensor(tensor);
    check_state_plane(plane);
    check_ready("state_view");
    wait();
    if (!cpu_optim::is_exact(state_format_of(plan_.update.planes)))
        return {};
    auto* const data = access_->resident(fp32_state_planes[plane], order_.range(tensor));
    client_writes_state_ |= data != nullptr;
    return data == nullptr ? std::span<float>{}
                           : std::span(reinterpret_cast<float*>(data),
                                       static_cast<std::size_t>(elements(tensor)));
}

std::uint64_t TensorEngine::factors(TensorId tensor) const {
    check_tensor(tensor);
    return memory_.factored ? memory_.factored->layout().of(tensor).values() : 0;
}

void TensorEngine::read_factors(TensorId tensor, std::uint64_t first, std::span<float> out) {
    const auto values = factors_part(tensor, first, out.size());
    read_access([&] { std::ranges::copy(values, out.begin()); });
}

void TensorEngine::write_factors(TensorId tensor, std::uint64_t first,
                                 std::span<const float> values) {
    const auto into = factors_part(tensor, first, values.size());
    write_access([=] { std::ranges::copy(values, into.begin()); });
}

std::span<float> TensorEngine::factors_part(TensorId tensor, std::uint64_t first,
                                            std::size_t count) {
    const auto there = factors(tensor);
    if (!memory_.factored)
        throw std::logic_error(fmt::format("{} keeps no factored second moments, asked for of '{}'",
                                           groups_.optimizer_name(0), parameters_[tensor].name));
    if (first > there || count > there - first)
        throw std::invalid_argument(
            fmt::format("factored values {} to {} of '{}' are asked for; it has {}", first,
                        first + count, parameters_[tensor].name, there));
    return memory_.factored->values_of(tensor).subspan(static_cast<std::size_t>(first), count);
}

void TensorEngine::read_masters(TensorId tensor, std::uint64_t first, std::span<float> out) {
    static_cast<void>(part(tensor, first, out.size()));
    check_ready("read_masters");
    wait();
    if (tensors_[tensor].type == ParameterType::fp32) {
        std::copy_n(static_cast<const float*>(tensors_[tensor].data) + first, out.size(),
                    out.begin());
        return;
    }
    // Piece by piece: residues of the whole would be memory that no budget knows of.
    std::vector<std::int16_t> residues(
        std::min<std::size_t>(out.size(), std::size_t{8} * tile_elements));
    const auto* const weights = static_cast<const std::uint16_t*>(tensors_[tensor].data);
    while (!out.empty()) {
        const auto piece = std::span(residues).first(std::min(out.size(), residues.size()));
        read_residue(tensor, first, piece);
        cpu_optim::join_master(options_.isa, {weights + first, piece.size()}, piece,
                               out.first(piece.size()));
        out = out.subspan(piece.size());
        first += piece.size();
    }
}

void TensorEngine::read_average(TensorId tensor, std::uint64_t first, std::span<float> out) {
    check_average(tensor);
    const auto range = part(tensor, first, out.size());
    check_ready("read_average");
    wait();
    if (!options_.average->is_there(tensors_[tensor].steps))
        throw std::logic_error(fmt::format(
            "after {} updates of '{}' there is no average of it: it takes up weights for "
            "the first time after {}",
            tensors_[tensor].steps, parameters_[tensor].name, options_.average->every));
    read_access([&] {
        access_->read(Plane::average, range.begin * sizeof(float), std::as_writable_bytes(out));
    });
}

void TensorEngine::write_average(TensorId tensor, std::uint64_t first,
                                 std::span<const float> values) {
    check_average(tensor);
    const auto range = part(tensor, first, values.size());
    write_access([&] {
        access_->write(Plane::average, range.begin * sizeof(float), std::as_bytes(values));
    });
}

void TensorEngine::reset_residue(TensorId tensor) {
    check_tensor(tensor);
    check_ready("reset_residue");
    wait();
    tensors_[tensor].fresh_residue = tensors_[tensor].type == ParameterType::bf16;
}

void TensorEngine::read_residue(TensorId tensor, std::uint64_t first, std::span<std::int16_t> out) {
    check_bf16(tensor);
    const auto range = part(tensor, first, out.size());
    read_access([&] {
        access_->read(Plane::residue, range.begin * sizeof(std::int16_t),
                      std::as_writable_bytes(out));
    });
    if (tensors_[tensor].fresh_residue)
        std::ranges::fill(out, std::int16_t{0});
}

void TensorEngine::write_residue(TensorId tensor, std::uint64_t first,
                                 std::span<const std::int16_t> values) {
    check_bf16(tensor);
    if (tensors_[tensor].fresh_residue && values.size() != elements(tensor))
        throw std::logic_error(
            fmt::format("write_residue: the residues of '{}' were reset; write all {} of them",
                        parameters_[tensor].name, elements(tensor)));
    const auto range = part(tensor, first, values.size());
    write_access([&] {
        access_->write(Plane::residue, range.begin * sizeof(std::int16_t), std::as_bytes(values));
    });
    tensors_[tensor].fresh_residue = false;
}

void TensorEngine::check_state_plane(std::size_t index) const {
    if (index >= state_planes())
        throw std::invalid_argument(fmt::format("state plane {} is asked for; {} keeps {}", index,
                                                groups_.optimizer_name(0), state_planes()));
}

void TensorEngine::check_average(TensorId tensor) const {
    check_tensor(tensor);
    if (!options_.average)
        throw std::logic_error(fmt::format(
            "no average of '{}' is kept: the optimizer was made without; make it with the "
            "option average, such as ema:0.999 or swa:100",
            parameters_[tensor].name));
}

/// A part of an int8 block cannot be written: the others might need another scale.
void TensorEngine::check_whole_blocks(TensorId tensor, std::uint64_t first,
                                      std::size_t count) const {
    constexpr auto block = cpu_optim::block_elements;
    const auto end = first + count;
    if (options_.state != cpu_optim::StateFormat::int8 || count == 0 ||
        (first % block == 0 && (end % block == 0 || end == elements(tensor))))
        return;
    throw std::invalid_argument(fmt::format(
        "elements {} to {} of '{}' are to be written; int8 state is written in whole blocks of {} "
        "elements, from a multiple of {} to another one or to the tensor's end, {}",
        first, end, parameters_[tensor].name, block, block, elements(tensor)));
}

void TensorEngine::check_bf16(TensorId tensor) const {
    check_tensor(tensor);
    if (parameters_[tensor].type != ParameterType::bf16)
        throw std::invalid_argument(fmt::format("'{}' is {}: only bf16 has residues",
                                                parameters_[tensor].name,
                                                type_name(parameters_[tensor].type)));
}

ElementRange TensorEngine::part(TensorId tensor, std::uint64_t first, std::size_t count) const {
    check_tensor(tensor);
    const auto whole = order_.range(tensor);
    if (first > whole.size() || count > whole.size() - first)
        throw std::invalid_argument(
            fmt::format("elements {} to {} of '{}' are asked for; it has {}", first, first + count,
                        parameters_[tensor].name, whole.size()));
    return {whole.begin + first, whole.begin + first + count};
}

}  // namespace spillway::offload::detail
