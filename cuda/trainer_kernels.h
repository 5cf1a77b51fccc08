// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>

#include "cuda/kernel_stream.h"
#include "cuda/kernels/attention_parameters.h"
#include "cuda/kernels/trainer_parameters.h"

/// The trainer's kernels, each queued with the threads it needs; what they do stands with their
/// parameters. Sums over tokens run one token after the other: cutting a step into micro-batches
/// changes no bit. All pointers are device pointers; calls enqueue and return. They throw as
/// KernelStream::launch_kernel() does.
namespace spillway::cuda {

/// Of the longest sequence that attention's kernels have shared memory for.
inline constexpr std::size_t most_attention_tokens = 6144;

void enqueue(KernelStream& stream, const Embedding& parameters);
void enqueue(KernelStream& stream, const TokenTableGradient& parameters);
void enqueue(KernelStream& stream, const PositionTableGradient& parameters);
void enqueue(KernelStream& stream, const LayerNorm& parameters);
void enqueue(KernelStream& stream, const LayerNormInputGradient& parameters);
void enqueue(KernelStream& stream, const ColumnGradients& parameters);
void enqueue(KernelStream& stream, const Product& parameters);
void enqueue(KernelStream& stream, const BiasEpilogue& parameters);
void enqueue(KernelStream& stream, const GeluBackward& parameters);
void enqueue(KernelStream& stream, const CrossEntropy& parameters);
void enqueue(KernelStream& stream, const MeanLoss& parameters);
/// These also throw std::invalid_argument for sequences longer than most_attention_tokens.
void enqueue(KernelStream& stream, const Attention& parameters);
void enqueue(KernelStream& stream, const AttentionQueryGradient& parameters);
void enqueue(KernelStream& stream, const AttentionKeyGradients& parameters);

/// [outputs, inputs] of a weight.
struct WeightMatrix {
    std::size_t outputs = 0;
    std::size_t inputs = 0;
};

/// result [tokens, outputs] = input x weight^T.
[[nodiscard]] Product forward_product(std::size_t tokens, const float* input, const float* weight,
                                      const WeightMatrix& shape, float* result);
/// input_gradient [tokens, inputs] = gradient x weight.
[[nodiscard]] Product input_gradient_product(std::size_t tokens, const float* gradient,
                                             const float* weight, const WeightMatrix& shape,
                                             float* input_gradient);
/// weight_gradient [outputs, inputs] (+)= gradient^T x input.
[[nodiscard]] Product weight_gradient_product(std::size_t tokens, const float* gradient,
                                              const float* input, const WeightMatrix& shape,
                                              bool adds, float* weight_gradient);

}  // namespace spillway::cuda
