// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include "engine/compute/compute.h"
#include "engine/model/gpt2_activations.h"
#include "engine/model/gpt2_tensors.h"

namespace spillway::engine {

/// Final LayerNorm, tied output layer and loss, on one micro-batch. Called inside
/// Compute::enqueue().
struct HeadCompute {
    Compute& compute;
    const Gpt2Config& config;
    TokenRows rows;
    Scratch scratch;
    std::size_t logits_rows;  ///< that exist at a time; changes no bit

    /// token_losses [tokens], in nats.
    void evaluate(const NormTensors<const float>& norm, const float* table, const float* input,
                  const TokenIds& tokens, double* token_losses) const;

    /// The same, and backward through output layer and loss: `table_gradient` gets this
    /// micro-batch's contribution, `normal_gradient` [tokens, hidden] the gradient of the
    /// LayerNorm's output. Gradients are those of gradient_scale x the sum of the losses.
    /// scratch.statistics keep those of the LayerNorm.
    void train(const NormTensors<const float>& norm, const float* table, const float* input,
               const TokenIds& tokens, float gradient_scale, Contribution contribution,
               double* token_losses, float* table_gradient, float* normal_gradient) const;

    /// Logits after the last of `rows`, into scratch.logits.
    void last_logits(const NormTensors<const float>& norm, const float* table,
                     const float* input) const;

  private:
    /// Tokens whose logits exist at a time; none spans the end of a sequence unless whole ones do.
    struct Chunk {
        std::size_t first_row;
        TokenRows rows;
    };
    template <typename Body>
    void over_chunks(const Body& body) const;
    void logits(const Chunk& chunk, const float* table) const;
    void losses(const Chunk& chunk, const TokenIds& tokens, LogitsGradient gradient, float scale,
                double* token_losses) const;
    [[nodiscard]] WeightShape table_shape() const { return {config.vocabulary, config.hidden}; }
};

}  // namespace spillway::engine
