// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "cuda/device.h"
#include "engine/compute/compute_pool.h"
#include "engine/model/gpt2_config.h"
#include "engine/model/gpt2_step.h"
#include "engine/model/static_parameter_stream.h"
#include "engine/model/token_sampler.h"

namespace spillway::engine {

/// Fills `out` with all elements of a tensor of the model.
using ReadTensor = std::function<void(offload::TensorId tensor, std::span<float> out)>;

/// Writes on from a prompt, a byte a token, with all weights in the memory of a device. A text
/// longer than the window slides through it. Not thread-safe.
class TextGenerator {
  public:
    /// Host memory that a generator and its loading take, when the device is the host: weights,
    /// activations of one sequence of `window` tokens, the largest tensor on its way.
    [[nodiscard]] static std::size_t needed_bytes(const Gpt2Config& config, std::uint32_t window,
                                                  std::size_t threads);

    /// Loads every tensor through `read`. `window`: tokens looked back at, at most the context.
    TextGenerator(cuda::Device& device, ComputePool& pool, const Gpt2Config& config,
                  std::uint32_t window, const ReadTensor& read);

    /// Calls `emit` with each of `count` new bytes as soon as it is drawn. Throws
    /// std::invalid_argument on an empty prompt or a byte that is no token of the model.
    void generate(std::string_view prompt, std::uint64_t count, TokenSampler& sampler,
                  const std::function<void(char)>& emit);

  private:
    Gpt2Config config_;
    std::uint32_t window_;
    std::unique_ptr<cuda::Stream> compute_;
    StaticParameterStream parameters_;
    Gpt2Step step_;
};

}  // namespace spillway::engine
