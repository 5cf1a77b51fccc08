// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/gradient_norm.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace spillway::offload::detail {
namespace {

struct TileNorm {
    double squares = 0;
    std::uint64_t nonfinite = 0;
    TensorId first_nonfinite = 0;
};

TileNorm scan_tile(const ElementOrder& order, const StepGradients& gradients, cpu_optim::Isa isa,
                   std::uint64_t tile) {
    TileNorm found;
    const ElementRange range{tile * tile_elements, (tile + 1) * tile_elements};
    const auto span = order.tensors_in(range);
    for (auto tensor = span.first; tensor < span.last; ++tensor) {
        const auto gradient = gradients.of(tensor);
        const auto whole = order.range(tensor);
        const auto begin = std::max(whole.begin, range.begin);
        const auto end = std::min(whole.end, range.end);
        if (gradient.data == nullptr || begin >= end)
            continue;
        const auto offset_bytes = (begin - whole.begin) * cpu_optim::gradient_bytes(gradient.type);
        const auto scan = cpu_optim::scan_gradient(
            isa, static_cast<const std::byte*>(gradient.data) + offset_bytes, gradient.type,
            static_cast<std::size_t>(end - begin));
        found.squares += scan.sum_of_squares;
        if (found.nonfinite == 0 && scan.nonfinite != 0)
            found.first_nonfinite = tensor;
        found.nonfinite += scan.nonfinite;
    }
    return found;
}

}  // namespace

GradientNorm gradient_norm(const ElementOrder& order, const StepGradients& gradients,
                           UpdateThreads& threads) {
    std::vector<TileNorm> tiles(order.tiles());
    threads.for_each(tiles.size(), [&](std::uint64_t tile) {
        tiles[tile] = scan_tile(order, gradients, threads.isa(), tile);
    });
    GradientNorm total;
    double squares = 0;
    for (const auto& tile : tiles) {
        squares += tile.squares;
        if (total.nonfinite == 0 && tile.nonfinite != 0)
            total.first_nonfinite = tile.first_nonfinite;
        total.nonfinite += tile.nonfinite;
    }
    total.norm = std::sqrt(squares);
    return total;
}

}  // namespace spillway::offload::detail
