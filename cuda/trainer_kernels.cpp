// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/trainer_kernels.h"

#include <stdexcept>

#include <fmt/format.h>

#include "cuda/launch_shapes.h"

namespace spillway::cuda {
namespace {

template <typename Parameters>
void by_elements(KernelStream& stream, std::size_t elements, const Parameters& parameters) {
    if (elements != 0)
        launch(stream, elementwise_shape(elements), parameters);
}

template <typename Parameters>
void by_rows(KernelStream& stream, std::size_t rows, std::size_t shared_bytes,
             const Parameters& parameters) {
    if (rows != 0)
        launch(stream,
               {.blocks = static_cast<unsigned>(rows),
                .threads = row_threads,
                .shared_bytes = static_cast<unsigned>(shared_bytes)},
               parameters);
}

template <typename Parameters>
void by_heads(KernelStream& stream, std::size_t floats_a_token, const Parameters& parameters) {
    const AttentionHeads& shape = parameters.shape;
    if (shape.sequence_tokens > most_attention_tokens)
        throw std::invalid_argument(fmt::format(
            "attention on a CUDA device: sequences of {} tokens; its kernels take up to "
            "{}",
            shape.sequence_tokens, most_attention_tokens));
    by_rows(stream, shape.tokens() * shape.heads,
            floats_a_token * shape.sequence_tokens * sizeof(float), parameters);
}

}  // namespace

void enqueue(KernelStream& stream, const Embedding& p) {
    by_elements(stream, p.sequences * p.sequence_tokens * p.features, p);
}
void enqueue(KernelStream& stream, const TokenTableGradient& p) {
    by_rows(stream, p.vocabulary, 0, p);
}
void enqueue(KernelStream& stream, const PositionTableGradient& p) {
    by_elements(stream, p.positions * p.features, p);
}
void enqueue(KernelStream& stream, const LayerNorm& p) {
    by_rows(stream, p.tokens, 0, p);
}
void enqueue(KernelStream& stream, const LayerNormInputGradient& p) {
    by_rows(stream, p.tokens, 0, p);
}
void enqueue(KernelStream& stream, const ColumnGradients& p) {
    // Few threads a block: a layer has no more than a few thousand features to share out.
    constexpr unsigned threads = 32;
    launch(stream,
           {.blocks = static_cast<unsigned>(blocks_for(p.features, threads)), .threads = threads},
           p);
}
void enqueue(KernelStream& stream, const Product& p) {
    const auto blocks = blocks_for(p.rows, Product::edge) * p.blocks_across();
    if (blocks != 0)
        launch(stream, {.blocks = static_cast<unsigned>(blocks), .threads = Product::threads}, p);
}
void enqueue(KernelStream& stream, const BiasEpilogue& p) {
    by_elements(stream, p.tokens * p.features, p);
}
void enqueue(KernelStream& stream, const GeluBackward& p) {
    by_elements(stream, p.elements, p);
}
void enqueue(KernelStream& stream, const CrossEntropy& p) {
    by_rows(stream, p.tokens, 0, p);
}
void enqueue(KernelStream& stream, const MeanLoss& p) {
    launch(stream, {}, p);
}
void enqueue(KernelStream& stream, const Attention& p) {
    by_heads(stream, 1, p);
}
void enqueue(KernelStream& stream, const AttentionQueryGradient& p) {
    by_heads(stream, 1, p);
}
void enqueue(KernelStream& stream, const AttentionKeyGradients& p) {
    by_heads(stream, 2, p);
}

Product forward_product(std::size_t tokens, const float* input, const float* weight,
                        const WeightMatrix& shape, float* result) {
    return {.rows = tokens,
            .columns = shape.outputs,
            .inner = shape.inputs,
            .a = input,
            .a_row = shape.inputs,
            .a_column = 1,
            .b = weight,
            .b_row = 1,
            .b_column = shape.inputs,
            .result = result,
            .adds = false};
}

Product input_gradient_product(std::size_t tokens, const float* gradient, const float* weight,
                               const WeightMatrix& shape, float* input_gradient) {
    return {.rows = tokens,
            .columns = shape.inputs,
            .inner = shape.outputs,
            .a = gradient,
            .a_row = shape.outputs,
            .a_column = 1,
            .b = weight,
            .b_row = shape.inputs,
            .b_column = 1,
            .result = input_gradient,
            .adds = false};
}

Product weight_gradient_product(std::size_t tokens, const float* gradient, const float* input,
                                const WeightMatrix& shape, bool adds, float* weight_gradient) {
    return {.rows = shape.outputs,
            .columns = shape.inputs,
            .inner = tokens,
            .a = gradient,
            .a_row = 1,
            .a_column = shape.outputs,
            .b = input,
            .b_row = shape.inputs,
            .b_column = 1,
            .result = weight_gradient,
            .adds = adds};
}

}  // namespace spillway::cuda
