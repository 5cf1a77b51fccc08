// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "tests/offload/whole_layer.h"

#include <array>
#include <variant>
#include <vector>

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

void WholeLayer::update(const LayerwiseHyperParameters& hyper, double gradient_scale,
                        const RoundingStream& stream, std::uint64_t first_in_order,
                        std::span<float> masters, std::span<const float> gradients) {
    std::vector<std::vector<float>> planes;
    for (std::size_t number = 0; number < needs(hyper).state_planes; ++number)
        planes.push_back(plane(hyper, number));
    const auto element = [&](std::size_t i) {
        return ElementwiseElement{masters[i],
                                  {planes[0][i], planes.size() > 1 ? planes[1][i] : 0.0F, 0}};
    };
    const auto made = make_coefficients(hyper, stream.step, gradient_scale);
    LayerSums sums;
    for (std::size_t i = 0; i < masters.size();) {
        LaneSum weights, directions;
        do {
            weights.add(masters[i]);
            directions.add(std::visit(
                [&](const auto& rule) {
                    return prepared(rule, element(i), gradients[i]).direction;
                },
                made.rule));
            ++i;
        } while (i < masters.size() && (first_in_order + i) % offload::tile_elements != 0);
        sums += {weights.total(), directions.total()};
    }
    state_.update(with_step(made, layer_step(hyper, sums)), stream, masters, gradients);
}

}  // namespace spillway::testing
