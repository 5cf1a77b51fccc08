// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "cuda/device.h"
#include "engine/compute/compute_pool.h"
#include "engine/model/gpt2_config.h"
#include "engine/model/layer_input_places.h"
#include "engine/model/parameter_stream.h"
#include "offload/activations.h"
#include "offload/step_trace.h"

namespace spillway::engine {

enum class Recompute {
    cheap_parts,  ///< keep the matrix products' outputs; norms and activations are computed again
    full,         ///< keep only each block's input; the whole block is computed again
};

/// Sequences of one step and how they are cut. micro_batches, recompute and input_places are
/// placement: they change no bit of loss or gradients.
struct BatchShape {
    std::uint32_t sequences = 1;
    std::uint32_t sequence_tokens = 0;
    std::uint32_t micro_batches = 1;  ///< divides sequences
    Recompute recompute = Recompute::cheap_parts;
    std::uint32_t step_sequences = 0;  ///< of the step that these are a part of; 0: they are all
    std::uint32_t input_places = 0;    ///< for layers' inputs on the device (LayerInputPlaces); 0:
                                       ///< one for each
    LostInputs lost_inputs = LostInputs::moved;  ///< placement too
};

/// Seconds of the last pass on the compute stream, waits included. The head stage (final LayerNorm,
/// output layer and loss) goes forward and backward in one and counts as backward; an evaluation is
/// all forward.
struct PassTimes {
    double forward_s = 0;
    double backward_s = 0;
};

/// Forward and backward of a GPT-2 on a device, vertically: all micro-batches of a block before the
/// next block, so that its weights are fetched once a direction. Not thread-safe.
class Gpt2Step {
  public:
    /// Exactly what the constructor allocates on the device (activations and scratch), in bytes.
    [[nodiscard]] static std::size_t device_bytes(const Gpt2Config& config, const BatchShape& shape,
                                                  std::size_t threads);

    /// `trace`: where the parts of a pass are recorded, as the compute stream comes to them.
    /// `inputs`: keeps those that leave the device; needed where the shape has some do
    /// so. It must outlive this, and serves nobody else.
    Gpt2Step(cuda::Device& device, cuda::Stream& compute, ComputePool& pool,
             const Gpt2Config& config, const BatchShape& shape, offload::TraceRow trace = {},
             offload::ActivationStore* inputs = nullptr);
    ~Gpt2Step();
    Gpt2Step(const Gpt2Step&) = delete;  // work in flight points at it
    Gpt2Step& operator=(const Gpt2Step&) = delete;

    /// `tokens`: sequences x (sequence_tokens + 1), row-major; token t predicts token t + 1.
    /// Returns the mean cross-entropy in nats per token; the gradients (of that mean, or of the
    /// whole step's where these are a part of one) have been handed to `parameters`.
    double train(ParameterStream& parameters, std::span<const std::int32_t> tokens);
    /// Forward only, same shape of `tokens`.
    double evaluate(ParameterStream& parameters, std::span<const std::int32_t> tokens);
    /// Logits of the token after `tokens` (1 .. sequence_tokens of them); logits.size() ==
    /// vocabulary.
    void next_token_logits(ParameterStream& parameters, std::span<const std::int32_t> tokens,
                           std::span<float> logits);

    [[nodiscard]] PassTimes times() const noexcept;

  private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace spillway::engine
