// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
//
// The training of synthetic_training.cpp as a plain loop.
#include <algorithm>
#include <cmath>
#include <functional>
#include <span>

#include "cpu_optim/gradient_scan.h"
#include "tests/offload/synthetic_training.h"
#include "tests/offload/whole_factored.h"
#include "tests/offload/whole_layer.h"
#include "tests/offload/whole_state.h"

namespace spillway::testing {

using namespace spillway::offload;

namespace {

/// What an update does to one tensor: (number, masters, gradients, scale of them).
using TensorUpdate =
    std::function<void(TensorId tensor, std::uint64_t update, std::span<float> masters,
                       std::span<const float> gradients, double scale)>;

/// By tensor: the factor on its gradient.
std::vector<double> reference_scales(const ElementOrder& order, std::span<const float> gradient,
                                     const SyntheticClip& clip) {
    const auto squares_of = [&](ElementRange range) {
        double squares = 0;
        for (auto begin = range.begin; begin < range.end;) {
            const auto end = std::min(range.end, (begin / tile_elements + 1) * tile_elements);
            squares += cpu_optim::scan_gradient(cpu_optim::Isa::scalar,
                                                gradient.subspan(begin, end - begin))
                           .sum_of_squares;
            begin = end;
        }
        return squares;
    };
    const auto scale = [](double most, double squares) {
        return most > 0 ? std::min(1.0, most / (std::sqrt(squares) + 1e-6)) : 1.0;
    };
    std::vector<double> scales;
    for (TensorId tensor = 0; tensor < order.tensors().size(); ++tensor) {
        if (clip.layer)
            scales.push_back(scale(*clip.layer, squares_of(order.range(tensor))));
        else
            scales.push_back(clip.value ? 1.0 : scale(clip.norm, squares_of({0, gradient.size()})));
    }
    return scales;
}

std::vector<float> train_reference(const ElementOrder& order, std::uint64_t steps,
                                   const SyntheticClip& clip,
                                   const std::vector<std::uint64_t>& nonfinite_iterations,
                                   const TensorUpdate& update_tensor) {
    const auto padded = order.tiles() * tile_elements;
    std::vector<float> all_masters(padded, 0.0f);
    std::vector<float> gradient(padded, 0.0f);
    const auto for_each_tensor = [&](const auto& body) {
        for (TensorId tensor = 0; tensor < order.tensors().size(); ++tensor) {
            const auto range = order.range(tensor);
            body(tensor, std::span(all_masters).subspan(range.begin, range.size()),
                 std::span(gradient).subspan(range.begin, range.size()));
        }
    };
    for_each_tensor([&](TensorId tensor, std::span<float> masters, std::span<float>) {
        for (std::size_t i = 0; i < masters.size(); ++i)
            masters[i] = synthetic_initial(tensor, i);
    });
    std::uint64_t update = 0;
    for (std::uint64_t iteration = 0; iteration < steps; ++iteration) {
        if (std::ranges::find(nonfinite_iterations, iteration) != nonfinite_iterations.end())
            continue;
        for_each_tensor([&](TensorId tensor, std::span<float> masters, std::span<float> sums) {
            for (std::size_t i = 0; i < masters.size(); ++i) {
                sums[i] = synthetic_gradient(masters[i], tensor, i, iteration, 0);
                if (order.tensors()[tensor].contributions == 2)
                    sums[i] += synthetic_gradient(masters[i], tensor, i, iteration, 1);
            }
        });
        const auto scales = reference_scales(order, gradient, clip);
        if (clip.value) {
            for (auto& value : gradient)
                value = std::clamp(value, -*clip.value, *clip.value);
        }
        ++update;
        for_each_tensor([&](TensorId tensor, std::span<float> masters, std::span<float> sums) {
            update_tensor(tensor, update, masters, sums, scales[tensor]);
        });
    }
    std::vector<float> result;
    for_each_tensor([&](TensorId, std::span<float> masters, std::span<float>) {
        result.insert(result.end(), masters.begin(), masters.end());
    });
    return result;
}

}  // namespace

std::vector<float> reference_synthetic(std::uint64_t steps, const SyntheticClip& clip,
                                       const std::vector<std::uint64_t>& nonfinite_iterations,
                                       const SyntheticGroups& groups,
                                       cpu_optim::StateFormat format) {
    const ElementOrder order(synthetic_model().tensors);
    std::vector<WholeState> state;
    for (TensorId tensor = 0; tensor < order.tensors().size(); ++tensor)
        state.emplace_back(format, static_cast<std::size_t>(order.range(tensor).size()));
    return train_reference(
        order, steps, clip, nonfinite_iterations,
        [&](TensorId tensor, std::uint64_t update, std::span<float> masters,
            std::span<const float> gradients, double scale) {
            state[tensor].update(
                cpu_optim::make_coefficients(groups[order.tensors()[tensor].group], update, scale),
                {.seed = synthetic_rounding_seed, .tensor = tensor, .step = update}, masters,
                gradients);
        });
}

std::vector<float> reference_synthetic(std::uint64_t steps, const SyntheticClip& clip,
                                       const SyntheticLayerwiseGroups& groups,
                                       cpu_optim::StateFormat format) {
    const ElementOrder order(synthetic_model().tensors);
    std::vector<WholeLayer> layers;
    for (TensorId tensor = 0; tensor < order.tensors().size(); ++tensor)
        layers.emplace_back(format, static_cast<std::size_t>(order.range(tensor).size()));
    return train_reference(
        order, steps, clip, {},
        [&](TensorId tensor, std::uint64_t update, std::span<float> masters,
            std::span<const float> gradients, double scale) {
            layers[tensor].update(
                groups[order.tensors()[tensor].group], scale,
                {.seed = synthetic_rounding_seed, .tensor = tensor, .step = update},
                order.range(tensor).begin, masters, gradients);
        });
}

std::vector<float> reference_synthetic(std::uint64_t steps, const SyntheticClip& clip,
                                       const SyntheticAdafactorGroups& groups) {
    const ElementOrder order(matrix_model_of(synthetic_model()).tensors);
    std::vector<WholeFactored> tensors;
    for (TensorId tensor = 0; tensor < order.tensors().size(); ++tensor)
        tensors.emplace_back(order.tensors()[tensor].shape, order.range(tensor).begin);
    return train_reference(order, steps, clip, {},
                           [&](TensorId tensor, std::uint64_t update, std::span<float> masters,
                               std::span<const float> gradients, double scale) {
                               tensors[tensor].update(groups[order.tensors()[tensor].group], update,
                                                      scale, masters, gradients);
                           });
}

}  // namespace spillway::testing
