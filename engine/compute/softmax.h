// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>

#include "cpu_optim/isa.h"

/// Rows of attention scores and logits. Thread-safe for disjoint rows.
namespace spillway::engine {

/// Of one row: its largest (scaled) value and 1 / sum(e^(value - largest)). With them the row's
/// probabilities can be computed again, to the bit.
struct SoftmaxStatistics {
    float largest, inverse_sum;
};

/// A row of `width` scores of which the first `visible` >= 1 count; the others get probability 0.
struct ScoreRow {
    float* scores;
    std::size_t visible, width;
    float scale;  ///< > 0; multiplies the scores
};

[[nodiscard]] SoftmaxStatistics softmax_statistics(cpu_optim::Isa isa, const ScoreRow& row);

/// scores = e^(scale score - largest) * inverse_sum.
void scores_to_probabilities(cpu_optim::Isa isa, const ScoreRow& row, SoftmaxStatistics statistics);

/// row.scores holds the gradients of the probabilities and becomes that of the scores before
/// scaling: p (dp - projection) scale, with projection = sum(p dp) over the row, as the caller
/// knows it.
void softmax_backward(cpu_optim::Isa isa, const ScoreRow& row, const float* probabilities,
                      float projection);

/// Sum of a[i] * b[i] in sixteen lanes.
[[nodiscard]] float dot(cpu_optim::Isa isa, const float* a, const float* b, std::size_t count);

/// What is wanted of a row of logits.
enum class LogitsGradient { none, replace_logits };

/// Cross-entropy, in nats, of `target` under softmax(logits); the gradient of it times `scale`
/// replaces the logits if asked for. NaN if any logit is NaN or +infinity.
[[nodiscard]] double cross_entropy(cpu_optim::Isa isa, float* logits, std::size_t count,
                                   std::size_t target, LogitsGradient gradient, float scale);

}  // namespace spillway::engine
