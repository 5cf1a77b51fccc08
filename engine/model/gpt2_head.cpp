// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/model/gpt2_head.h"

#include <algorithm>

namespace spillway::engine {

template <typename Body>
void HeadCompute::over_chunks(const Body& body) const {
    if (logits_rows >= rows.sequence_tokens) {
        const std::size_t together = logits_rows / rows.sequence_tokens;
        for (std::size_t first = 0; first < rows.sequences; first += together)
            body(Chunk{first * rows.sequence_tokens,
                       {std::min(together, rows.sequences - first), rows.sequence_tokens}});
        return;
    }
    for (std::size_t i = 0; i < rows.blocks(); ++i)
        body(Chunk{rows.block(i).first_row, {1, rows.block(i).rows}});
}

void HeadCompute::logits(const Chunk& chunk, const float* table) const {
    compute.product(chunk.rows, scratch.normal + chunk.first_row * config.hidden, table,
                    table_shape(), scratch.logits);
}

void HeadCompute::losses(const Chunk& chunk, const TokenIds& tokens, LogitsGradient gradient,
                         float scale, double* token_losses) const {
    compute.cross_entropy({scratch.logits, chunk.rows.tokens(), chunk.first_row, config.vocabulary},
                          rows, tokens, gradient, scale, token_losses);
}

void HeadCompute::evaluate(const NormTensors<const float>& norm, const float* table,
                           const float* input, const TokenIds& tokens, double* token_losses) const {
    compute.layer_norm(rows.tokens(), config.hidden, input, norm.weight, norm.bias, scratch.normal,
                       scratch.statistics);
    over_chunks([&](const Chunk& chunk) {
        logits(chunk, table);
        losses(chunk, tokens, LogitsGradient::none, 0.0f, token_losses);
    });
}

void HeadCompute::train(const NormTensors<const float>& norm, const float* table,
                        const float* input, const TokenIds& tokens, float gradient_scale,
                        Contribution contribution, double* token_losses, float* table_gradient,
                        float* normal_gradient) const {
    compute.layer_norm(rows.tokens(), config.hidden, input, norm.weight, norm.bias, scratch.normal,
                       scratch.statistics);
    over_chunks([&](const Chunk& chunk) {
        const std::size_t at = chunk.first_row * config.hidden;
        logits(chunk, table);
        losses(chunk, tokens, LogitsGradient::replace_logits, gradient_scale, token_losses);
        compute.product_weight_gradient(
            chunk.rows, scratch.logits, scratch.normal + at, table_shape(),
            chunk.first_row == 0 ? contribution : Contribution::further, table_gradient);
        compute.product_input_gradient(chunk.rows, scratch.logits, table, table_shape(),
                                       normal_gradient + at);
    });
}

void HeadCompute::last_logits(const NormTensors<const float>& norm, const float* table,
                              const float* input) const {
    const std::size_t last = rows.tokens() - 1;
    compute.layer_norm(1, config.hidden, input + last * config.hidden, norm.weight, norm.bias,
                       scratch.normal, scratch.statistics);
    compute.product({1, 1}, scratch.normal, table, table_shape(), scratch.logits);
}

}  // namespace spillway::engine
