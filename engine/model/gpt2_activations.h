// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/compute/attention.h"
#include "engine/compute/layer_norm.h"
#include "engine/model/gpt2_config.h"
#include "engine/model/gpt2_step.h"
#include "engine/model/layer_input_places.h"

namespace spillway::engine {

/// What the backward pass of one block needs of its forward pass, for one micro-batch.
struct BlockActivations {
    float* qkv;                  ///< [tokens, 3 x hidden]
    float* attended;             ///< [tokens, hidden]
    SoftmaxStatistics* softmax;  ///< [tokens, heads]
    float* middle;               ///< [tokens, hidden]: the residual stream after attention
    float* up;                   ///< [tokens, feed_forward]: before the activation
};

/// Room for one micro-batch that holds nothing from one kernel to the next.
struct Scratch {
    float* normal;         ///< [tokens, hidden]: output of a LayerNorm
    float* narrow;         ///< [tokens, hidden]: gradient of that, or of attention's output
    float* activated;      ///< [tokens, feed_forward]: GELU's output
    float* wide_gradient;  ///< [tokens, max(feed_forward, 3 x hidden)]
    float* logits;         ///< [head_chunk, vocabulary]; shares the room of the two before
    float* attention;      ///< attention_scratch_elements
    RowStatistics* statistics;
};

/// All device memory of a Gpt2Step, cut from one allocation. Without a base it only measures.
class Gpt2Activations {
  public:
    Gpt2Activations(const Gpt2Config& config, const BatchShape& shape, std::size_t threads,
                    std::byte* base);

    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

    [[nodiscard]] const LayerInputPlaces& input_places() const noexcept { return places_; }
    /// Input of block `layer` from token `token` of the step on; layer == layers: the last one's
    /// output.
    [[nodiscard]] float* block_input(std::size_t layer, std::size_t token) const noexcept;
    /// The same for a pass that keeps nothing, whose inputs take turns in two places.
    [[nodiscard]] float* passing_input(std::size_t layer, std::size_t token) const noexcept;
    /// Of a block for the micro-batch that starts at `token`. With Recompute::full there is only
    /// one set, and both arguments are ignored.
    [[nodiscard]] BlockActivations block(std::size_t layer, std::size_t token) const noexcept;
    /// For a micro-batch that starts at `token`.
    [[nodiscard]] Scratch scratch(std::size_t token) const noexcept;
    /// Gradient of the residual stream, from `token` on.
    [[nodiscard]] float* residual_gradient(std::size_t token) const noexcept;

    [[nodiscard]] std::int32_t* tokens() const noexcept { return tokens_; }
    [[nodiscard]] double* token_losses() const noexcept { return token_losses_; }
    [[nodiscard]] double* loss() const noexcept { return loss_; }
    /// Rows of logits that exist at a time.
    [[nodiscard]] std::size_t logits_rows() const noexcept { return logits_rows_; }

  private:
    void carve(std::size_t threads, std::byte* base);

    Gpt2Config config_;
    BatchShape shape_;
    LayerInputPlaces places_;
    std::size_t kept_tokens_ = 0;  ///< of one set of block activations
    std::size_t logits_rows_ = 0;
    std::size_t bytes_ = 0;
    std::int32_t* tokens_ = nullptr;
    double* token_losses_ = nullptr;
    double* loss_ = nullptr;
    float* block_inputs_ = nullptr;
    float* residual_gradient_ = nullptr;
    BlockActivations kept_{};
    Scratch scratch_{};
};

/// The model with its sizes filled in. Throws std::invalid_argument if it or the shape is
/// impossible, or the sequences are longer than the model's context.
[[nodiscard]] Gpt2Config resolved_for(Gpt2Config config, const BatchShape& shape);

/// Rows of logits to compute at a time: whole sequences of a micro-batch while they fit a few tens
/// of MiB, else one token block.
[[nodiscard]] std::size_t logits_rows(const Gpt2Config& config, const TokenRows& rows);

}  // namespace spillway::engine
