// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/gpt2_config.h"

namespace spillway::testing {

using Doubles = std::vector<double>;

/// GPT-2 in double precision, as plain loops over one sequence at a time: the oracle of the
/// engine's kernels. It shares no code with them.
class Gpt2Reference {
  public:
    /// Tensors in the order of engine::gpt2_tensors.
    Gpt2Reference(const engine::Gpt2Config& config, std::vector<Doubles> tensors);

    struct Pass {
        double loss = 0;
        std::vector<Doubles> gradients;  ///< of the mean loss
    };
    /// `tokens`: sequences x (sequence_tokens + 1).
    [[nodiscard]] Pass train(std::span<const std::int32_t> tokens, std::size_t sequences) const;
    [[nodiscard]] double loss(std::span<const std::int32_t> tokens, std::size_t sequences) const;
    /// After the last of `tokens`.
    [[nodiscard]] Doubles next_token_logits(std::span<const std::int32_t> tokens) const;

    [[nodiscard]] Doubles& tensor(std::size_t index) { return tensors_.at(index); }

  private:
    struct LayerCache;
    struct SequenceCache;
    [[nodiscard]] SequenceCache forward(std::span<const std::int32_t> tokens) const;
    [[nodiscard]] Doubles layer_forward(std::size_t layer, const Doubles& x,
                                        LayerCache& cache) const;
    [[nodiscard]] Doubles layer_backward(std::size_t layer, const LayerCache& cache,
                                         Doubles gradient, std::vector<Doubles>& gradients) const;
    void backward(const SequenceCache& cache, std::span<const std::int32_t> tokens, double scale,
                  std::vector<Doubles>& gradients) const;

    engine::Gpt2Config config_;
    std::vector<Doubles> tensors_;
};

/// Of a model with such weights, by tensor.
[[nodiscard]] Gpt2Reference reference_of(const engine::Gpt2Config& config,
                                         const std::vector<std::vector<float>>& weights);

/// The same ones each time.
[[nodiscard]] std::vector<std::int32_t> random_tokens(const engine::Gpt2Config& config,
                                                      std::size_t count);

}  // namespace spillway::testing
