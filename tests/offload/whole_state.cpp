// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "tests/offload/whole_state.h"

#include <algorithm>

#include "cpu_optim/float_formats.h"

namespace spillway::testing {

using namespace cpu_optim;

WholeState::WholeState(StateFormat format, std::size_t elements)
    : format_(format), elements_(elements) {
    const auto blocks = (elements + block_elements - 1) / block_elements;
    if (format == StateFormat::fp32) {
        floats_.assign(most_state_planes, std::vector<float>(elements, 0));
    } else if (format == StateFormat::bf16) {
        halves_.assign(most_lossy_planes, std::vector<std::uint16_t>(elements, 0));
    } else {
        codes_.assign(most_lossy_planes, std::vector<std::uint8_t>(blocks * block_elements, 0));
        scales_.assign(most_lossy_planes, std::vector<std::uint8_t>(blocks, 0));
    }
}

template <class Rule>
void WholeState::update_by(const Rule& rule, const RoundingStream& stream, std::span<float> masters,
                           std::span<const float> gradients) {
    const auto with_common = [&](auto run) {
        run.elements = elements_;
        run.master = masters.data();
        run.gradient = gradients.data();
        return run;
    };
    if (format_ == StateFormat::fp32) {
        auto run = with_common(ElementwiseRun{});
        for (std::size_t plane = 0; plane < floats_.size(); ++plane)
            run.state[plane] = floats_[plane].data();
        static_cast<void>(update_run(Isa::scalar, rule, run));
    } else if (format_ == StateFormat::bf16) {
        auto run = with_common(Bf16Run{});
        for (std::size_t plane = 0; plane < halves_.size(); ++plane)
            run.state[plane] = halves_[plane].data();
        static_cast<void>(update_run(Isa::scalar, rule, stream, run));
    } else {
        auto run = with_common(Int8Run{});
        for (std::size_t plane = 0; plane < codes_.size(); ++plane) {
            run.codes[plane] = codes_[plane].data();
            run.scales[plane] = scales_[plane].data();
        }
        static_cast<void>(update_run(Isa::scalar, rule, stream, run));
    }
}

void WholeState::update(const ElementwiseCoefficients& coefficients, const RoundingStream& stream,
                        std::span<float> masters, std::span<const float> gradients) {
    update_by(coefficients, stream, masters, gradients);
}

void WholeState::update(const LayerwiseStep& layer_step, const RoundingStream& stream,
                        std::span<float> masters, std::span<const float> gradients) {
    update_by(layer_step, stream, masters, gradients);
}

std::vector<float> WholeState::values(MomentKind kind, std::size_t plane) const {
    if (format_ == StateFormat::fp32)
        return floats_[plane];
    std::vector<float> values;
    for (std::size_t i = 0; i < elements_; ++i)
        values.push_back(format_ == StateFormat::bf16
                             ? from_bf16(halves_[plane][i])
                             : decode(kind,
                                      codes_[plane][i / block_elements * block_elements +
                                                    code_place(i % block_elements)],
                                      scales_[plane][i / block_elements]));
    return values;
}

}  // namespace spillway::testing
