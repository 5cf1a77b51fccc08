// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/gradients/gradient_norm.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "offload/errors.h"

namespace spillway::offload::detail {
namespace {

/// 16 Mi elements, between two looks at the stop token: some milliseconds of memory bandwidth, and
/// with one scalar thread still less than a tenth of a second.
constexpr std::uint64_t tiles_at_a_time = 1024;

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
                           UpdateThreads& threads, const std::stop_token& stop) {
    std::vector<TileNorm> tiles(order.tiles());
    for (std::uint64_t first = 0; first < tiles.size(); first += tiles_at_a_time) {
        if (stop.stop_requested())
            throw StepStopped("the step was stopped before it began");
        const auto count = std::min<std::uint64_t>(tiles_at_a_time, tiles.size() - first);
        threads.for_each(count, [&](std::uint64_t index) {
            tiles[first + index] = scan_tile(order, gradients, threads.isa(), first + index);
        });
    }
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
