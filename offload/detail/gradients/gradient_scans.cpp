// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/gradients/gradient_scans.h"

#include <algorithm>
#include <cmath>

#include "cpu_optim/gradient_scan.h"

namespace spillway::offload::detail {

GradientScans::GradientScans(const ElementOrder& order, GradientNorms norms)
    : order_(order),
      tile_squares_(order.tiles(), 0.0),
      tile_nonfinite_(order.tiles(), 0),
      part_squares_(norms == GradientNorms::of_each_tensor
                        ? static_cast<std::size_t>(order.tiles()) + order.tensors().size()
                        : 0,
                    0.0) {}

void GradientScans::begin_step() {
    nonfinite_tensor_.clear();
}

void GradientScans::scan(cpu_optim::Isa isa, TileRange tiles, const float* gradient) {
    for (auto tile = tiles.begin; tile < tiles.end; ++tile) {
        const auto* const data = gradient + (tile - tiles.begin) * tile_elements;
        const auto found = cpu_optim::scan_gradient(isa, {data, tile_elements});
        tile_squares_[tile] = found.sum_of_squares;
        tile_nonfinite_[tile] = found.nonfinite;
        if (found.nonfinite != 0 && (nonfinite_tensor_.empty() || tile < nonfinite_tile_)) {
            nonfinite_tile_ = tile;
            nonfinite_tensor_ = first_nonfinite_tensor(tile, data);
        }
        if (!part_squares_.empty())
            scan_tensors(isa, tile, data);
    }
}

std::string GradientScans::first_nonfinite_tensor(std::uint64_t tile, const float* gradient) const {
    const auto* const bad =
        std::find_if(gradient, gradient + tile_elements, [](float x) { return !std::isfinite(x); });
    const auto element = tile * tile_elements + static_cast<std::uint64_t>(bad - gradient);
    return order_.tensors()[order_.tensors_in({element, element + 1}).first].name;
}

void GradientScans::scan_tensors(cpu_optim::Isa isa, std::uint64_t tile, const float* gradient) {
    const auto begin = tile * tile_elements;
    const auto span = order_.tensors_in({begin, begin + tile_elements});
    for (auto tensor = span.first; tensor < span.last; ++tensor) {
        const auto whole = order_.range(tensor);
        const auto first = std::max(whole.begin, begin);
        const auto end = std::min(whole.end, begin + tile_elements);
        if (first >= end)
            continue;
        part_squares_[static_cast<std::size_t>(tile) + tensor] =
            cpu_optim::scan_gradient(
                isa, {gradient + (first - begin), static_cast<std::size_t>(end - first)})
                .sum_of_squares;
    }
}

std::vector<double> GradientScans::tensor_squares() const {
    std::vector<double> squares(part_squares_.empty() ? 0 : order_.tensors().size(), 0.0);
    for (TensorId tensor = 0; tensor < squares.size(); ++tensor) {
        const auto range = order_.range(tensor);
        for (auto tile = range.begin / tile_elements; tile * tile_elements < range.end; ++tile)
            squares[tensor] += part_squares_[static_cast<std::size_t>(tile) + tensor];
    }
    return squares;
}

GradientSummary GradientScans::summary() const {
    GradientSummary summary;
    double squares = 0;
    for (std::uint64_t tile = 0; tile < order_.tiles(); ++tile) {
        squares += tile_squares_[tile];
        summary.nonfinite += tile_nonfinite_[tile];
    }
    summary.norm = std::sqrt(squares);
    summary.nonfinite_tensor = nonfinite_tensor_;
    summary.tensor_squares = tensor_squares();
    return summary;
}

}  // namespace spillway::offload::detail
