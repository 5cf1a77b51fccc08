// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <catch2/catch.hpp>

#include "cuda/device.h"
#include "engine/model/gpt2_config.h"
#include "engine/model/gpt2_step.h"
#include "engine/model/static_parameter_stream.h"
#include "tests/engine/compute/compute_support.h"
#include "tests/engine/model/gpt2_reference.h"

namespace spillway::testing {

/// Gradients as passes left them on a device, each contribution by itself; a pass that goes on adds
/// to what the passes before it left.
class PartialGradients final : public engine::ParameterStream {
  public:
    PartialGradients(const engine::Gpt2Config& config, cuda::Device& device)
        : order_(gpt2_tensors(config)), units_(gpt2_units(config)), device_(device) {}

    /// Of the next pass, with the weights of `weights`.
    void begin(engine::ParameterStream& weights) {
        weights_ = &weights;
        contribution_ =
            memory_.empty() ? engine::Contribution::first : engine::Contribution::further;
        next_ = 0;
    }

    const float* acquire_weights(std::size_t unit) override {
        return weights_->acquire_weights(unit);
    }
    void release_weights(std::size_t unit) override { weights_->release_weights(unit); }
    float* acquire_gradient(std::size_t unit) override {
        if (contribution_ == engine::Contribution::first) {
            const auto elements = offload::unit_range(order_, units_[unit]).size();
            memory_.push_back(device_.allocate(static_cast<std::size_t>(elements) * sizeof(float)));
            contributed_to_.push_back(unit);
        }
        return memory_.at(next_++).as<float>();
    }
    void release_gradient(std::size_t) override {}
    engine::Contribution first_contribution() const noexcept override { return contribution_; }

    /// Contribution by contribution, tensor by tensor.
    [[nodiscard]] std::vector<std::vector<float>> values(cuda::Stream& stream) const {
        std::vector<std::vector<float>> all;
        for (std::size_t i = 0; i < memory_.size(); ++i) {
            const auto& unit = units_[contributed_to_[i]];
            const auto begin = offload::unit_range(order_, unit).begin;
            for (auto tensor = unit.first_tensor; tensor < unit.first_tensor + unit.tensor_count;
                 ++tensor) {
                const auto range = order_.range(tensor);
                auto& values = all.emplace_back(static_cast<std::size_t>(range.size()));
                const auto* const from = memory_[i].as<float>() + (range.begin - begin);
                stream.copy_to_host(reinterpret_cast<std::byte*>(values.data()),
                                    reinterpret_cast<const std::byte*>(from),
                                    values.size() * sizeof(float));
                stream.synchronize();
            }
        }
        return all;
    }

  private:
    offload::ElementOrder order_;
    std::vector<offload::Unit> units_;
    cuda::Device& device_;
    engine::ParameterStream* weights_ = nullptr;
    engine::Contribution contribution_ = engine::Contribution::first;
    std::vector<cuda::DeviceBuffer> memory_;
    std::vector<std::size_t> contributed_to_;
    std::size_t next_ = 0;
};

/// Trains one step as a whole, and in two parts of which the second goes on with what the first one
/// left: the gradients have the same bits, and the loss is the mean of theirs.
inline void check_step_in_parts(const engine::Gpt2Config& config, std::uint32_t sequence_tokens,
                                cuda::Device& device) {
    const auto stream = device.create_stream("compute");
    engine::ComputePool pool(1, cpu_optim::best_isa());
    using Weights = engine::StaticParameterStream;
    Weights weights(device, *stream, config, Weights::Blocks::separate);
    weights.initialise(5);
    const std::size_t window = sequence_tokens + std::size_t{1};
    const auto tokens = random_tokens(config, 4 * window);
    const auto pass = [&](PartialGradients& gradients, std::uint32_t first,
                          const engine::BatchShape& shape) {
        engine::Gpt2Step step(device, *stream, pool, config, shape);
        gradients.begin(weights);
        return shape.sequences *
               step.train(gradients,
                          std::span(tokens).subspan(first * window, shape.sequences * window));
    };
    PartialGradients whole(config, device), parts(config, device);
    const double loss = pass(whole, 0, {4, sequence_tokens, 2});
    const double first =
        pass(parts, 0, {.sequences = 1, .sequence_tokens = sequence_tokens, .step_sequences = 4});
    const double rest =
        pass(parts, 1, {.sequences = 3, .sequence_tokens = sequence_tokens, .step_sequences = 4});
    CHECK(first + rest == Approx(loss).epsilon(1e-14));
    CHECK(std::ranges::equal(parts.values(*stream), whole.values(*stream), same_bits));
}

}  // namespace spillway::testing
