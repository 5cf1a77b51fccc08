// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "tests/offload/whole_layer.h"

#include <variant>

#include "cpu_optim/layerwise_reference.h"
#include "offload/element_order.h"

namespace spillway::testing {

using namespace cpu_optim;

namespace {

/// Squares of a tile's part: element i to lane i % 16, lanes in halves.
class LaneSum {
  public:
    void add(double value) { lanes_[count_++ % 16] += value * value; }
    [[nodiscard]] double total() const {
        auto lanes = lanes_;
        for (std::size_t half = 8; half > 0; half /= 2) {
            for (std::size_t lane = 0; lane < half; ++lane)
                lanes[lane] += lanes[lane + half];
        }
        return lanes[0];
    }

  private:
    std::array<double, 16> lanes_{};
    std::size_t count_ = 0;
};

}  // namespace

WholeLayer::WholeLayer(std::size_t elements) {
    for (auto& plane : planes_)
        plane.assign(elements, 0);
}

void WholeLayer::update(const LayerwiseHyperParameters& hyper, std::uint64_t step,
                        double gradient_scale, std::uint64_t first_in_order,
                        std::span<float> masters, std::span<const float> gradients) {
    const auto element = [&](std::size_t i) {
        return ElementwiseElement{masters[i], {planes_[0][i], planes_[1][i], 0}};
    };
    const auto store = [&](std::size_t i, const ElementwiseElement& value) {
        masters[i] = value.master;
        planes_[0][i] = value.state[0];
        planes_[1][i] = value.state[1];
    };
    const auto made = make_coefficients(hyper, step, gradient_scale);
    std::visit(
        [&](const auto& coefficients) {
            LayerSums sums;
            for (std::size_t i = 0; i < masters.size();) {
                LaneSum weights, directions;
                do {
                    const auto [value, direction] =
                        prepared(coefficients, element(i), gradients[i]);
                    weights.add(masters[i]);
                    directions.add(direction);
                    store(i, value);
                    ++i;
                } while (i < masters.size() && (first_in_order + i) % offload::tile_elements != 0);
                sums += {weights.total(), directions.total()};
            }
            const auto length = layer_step(hyper, sums);
            for (std::size_t i = 0; i < masters.size(); ++i)
                store(i, applied(coefficients, length, element(i), gradients[i]));
        },
        made.rule);
}

}  // namespace spillway::testing
