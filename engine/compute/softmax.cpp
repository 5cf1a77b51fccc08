// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/compute/softmax.h"

#include <cmath>
#include <limits>

#include "engine/compute/detail/kernel_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/compute/softmax.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "engine/compute/detail/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::engine {
namespace HWY_NAMESPACE {
namespace {

/// Fills ragged ends: below every score that a sum of finite products can give.
constexpr float lowest = -__builtin_inff();

HWY_INLINE float largest_of(const float* row, std::size_t count) {
    Lanes largest = broadcast(lowest);
    for (std::size_t i = 0; i < count; i += lane_count)
        largest = max(largest, load_of(row, i, count, lowest));
    return max_lanes(largest);
}

/// e^(scale x - largest) of sixteen scores; 0 behind the end of the row.
HWY_INLINE Lanes powers_of(const float* row, std::size_t i, std::size_t count, float scale,
                           float largest) {
    return exponential(fma(load_of(row, i, count, lowest), broadcast(scale), broadcast(-largest)));
}

HWY_INLINE float sum_of_powers(const float* row, std::size_t count, float scale, float largest) {
    Lanes sum = broadcast(0.0f);
    for (std::size_t i = 0; i < count; i += lane_count)
        sum = add(sum, powers_of(row, i, count, scale, largest));
    return sum_lanes(sum);
}

void statistics_kernel(const ScoreRow& row, SoftmaxStatistics& statistics) {
    const float largest = largest_of(row.scores, row.visible) * row.scale;
    const float sum = sum_of_powers(row.scores, row.visible, row.scale, largest);
    statistics = {largest, 1.0f / sum};
}

void probabilities_kernel(const ScoreRow& row, const SoftmaxStatistics& statistics) {
    const Lanes factor = broadcast(statistics.inverse_sum);
    for (std::size_t i = 0; i < row.visible; i += lane_count) {
        const Lanes power = powers_of(row.scores, i, row.visible, row.scale, statistics.largest);
        store_of(row.scores, i, row.visible, multiply(power, factor));
    }
    for (std::size_t i = row.visible; i < row.width; ++i)
        row.scores[i] = 0.0f;
}

void backward_kernel(const ScoreRow& row, const float* probabilities, float projection) {
    for (std::size_t i = 0; i < row.visible; i += lane_count) {
        const Lanes p = multiply(load_of(probabilities, i, row.visible), broadcast(row.scale));
        const Lanes centred = subtract(load_of(row.scores, i, row.visible), broadcast(projection));
        store_of(row.scores, i, row.visible, multiply(p, centred));
    }
    for (std::size_t i = row.visible; i < row.width; ++i)
        row.scores[i] = 0.0f;
}

float dot_kernel(const float* a, const float* b, std::size_t count) {
    Lanes sum = broadcast(0.0f);
    for (std::size_t i = 0; i < count; i += lane_count)
        sum = fma(load_of(a, i, count), load_of(b, i, count), sum);
    return sum_lanes(sum);
}

void largest_and_sum_kernel(const float* logits, std::size_t count, float& largest, float& sum) {
    largest = largest_of(logits, count);
    sum = sum_of_powers(logits, count, 1.0f, largest);
}

void logits_gradient_kernel(float* logits, std::size_t count, float largest, float factor) {
    for (std::size_t i = 0; i < count; i += lane_count) {
        const Lanes power = powers_of(logits, i, count, 1.0f, largest);
        store_of(logits, i, count, multiply(power, broadcast(factor)));
    }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace spillway::engine
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::engine {

SoftmaxStatistics softmax_statistics(cpu_optim::Isa isa, const ScoreRow& row) {
    SoftmaxStatistics statistics{};
    SPILLWAY_KERNEL(isa, statistics_kernel)(row, statistics);
    return statistics;
}

void scores_to_probabilities(cpu_optim::Isa isa, const ScoreRow& row,
                             SoftmaxStatistics statistics) {
    SPILLWAY_KERNEL(isa, probabilities_kernel)(row, statistics);
}

void softmax_backward(cpu_optim::Isa isa, const ScoreRow& row, const float* probabilities,
                      float projection) {
    SPILLWAY_KERNEL(isa, backward_kernel)(row, probabilities, projection);
}

float dot(cpu_optim::Isa isa, const float* a, const float* b, std::size_t count) {
    return SPILLWAY_KERNEL(isa, dot_kernel)(a, b, count);
}

double cross_entropy(cpu_optim::Isa isa, float* logits, std::size_t count, std::size_t target,
                     LogitsGradient gradient, float scale) {
    float largest = 0;
    float sum = 0;
    SPILLWAY_KERNEL(isa, largest_and_sum_kernel)(logits, count, largest, sum);
    const double loss = static_cast<double>(largest) + std::log(static_cast<double>(sum)) -
                        static_cast<double>(logits[target]);
    if (gradient == LogitsGradient::replace_logits) {
        SPILLWAY_KERNEL(isa, logits_gradient_kernel)(logits, count, largest, scale / sum);
        logits[target] -= scale;
    }
    return loss;
}

}  // namespace spillway::engine
#endif  // HWY_ONCE
