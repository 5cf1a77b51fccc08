// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <algorithm>
#include <array>
#include <exception>
#include <stdexcept>
#include <vector>

#include <fmt/format.h>

#include "cpu_optim/split_master.h"
#include "offload/detail/tensor_engine.h"

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

void TensorEngine::read_plane(TensorId tensor, Plane plane, std::uint64_t first, std::byte* out,
                              std::size_t count) {
    const auto range = part(tensor, first, count);
    check_ready("reading state");
    wait();
    try {
        access_->read(plane, range, out);
    } catch (...) {  // read by the calling thread, not by one whose errors are kept
        monitor_.poison(std::current_exception());
        throw;
    }
}

void TensorEngine::write_plane(TensorId tensor, Plane plane, std::uint64_t first,
                               const std::byte* values, std::size_t count) {
    const auto range = part(tensor, first, count);
    check_ready("writing state");
    wait();
    pipeline_->edit([&] { access_->write(plane, range, values); });
    if (committer_)
        committer_->after_update();
}

std::span<float> TensorEngine::state_view(TensorId tensor, std::size_t plane) {
    check_tensor(tensor);
    check_ready("state_view");
    wait();
    auto* const data = access_->resident(state_plane(plane), order_.range(tensor));
    client_writes_state_ |= data != nullptr;
    return data == nullptr ? std::span<float>{}
                           : std::span(reinterpret_cast<float*>(data),
                                       static_cast<std::size_t>(elements(tensor)));
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

void TensorEngine::reset_residue(TensorId tensor) {
    check_tensor(tensor);
    check_ready("reset_residue");
    wait();
    tensors_[tensor].fresh_residue = tensors_[tensor].type == ParameterType::bf16;
}

void TensorEngine::read_residue(TensorId tensor, std::uint64_t first, std::span<std::int16_t> out) {
    check_bf16(tensor);
    read_plane(tensor, Plane::residue, first, reinterpret_cast<std::byte*>(out.data()), out.size());
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
    write_plane(tensor, Plane::residue, first, reinterpret_cast<const std::byte*>(values.data()),
                values.size());
    tensors_[tensor].fresh_residue = false;
}

Plane TensorEngine::state_plane(std::size_t index) const {
    const auto count = plan_.update.planes.size() - residue_planes();
    if (index >= count)
        throw std::invalid_argument(fmt::format("state plane {} is asked for; {} keeps {}", index,
                                                cpu_optim::optimizer_name(groups_.front()), count));
    constexpr std::array planes{Plane::m, Plane::v, Plane::extra};
    return planes[index];
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
