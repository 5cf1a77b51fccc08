// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/compute/layer_norm.h"

#include <algorithm>
#include <cmath>

#include "engine/compute/detail/kernel_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/compute/layer_norm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "engine/compute/detail/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::engine {
namespace HWY_NAMESPACE {
namespace {

constexpr float epsilon = 1e-5f;

HWY_INLINE float row_mean(const float* x, std::size_t features) {
    Lanes sum = broadcast(0.0f);
    for (std::size_t i = 0; i < features; i += lane_count)
        sum = add(sum, load_of(x, i, features));
    return sum_lanes(sum) / static_cast<float>(features);
}

/// In a second pass: the difference of two large sums would lose the digits of a small variance.
HWY_INLINE float row_variance(const float* x, std::size_t features, float mean) {
    Lanes sum = broadcast(0.0f);
    for (std::size_t i = 0; i < features; i += lane_count) {
        const Lanes centred = subtract(load_of(x, i, features, mean), broadcast(mean));
        sum = fma(centred, centred, sum);
    }
    return sum_lanes(sum) / static_cast<float>(features);
}

void normalise_row(const float* x, const float* weight, const float* bias, std::size_t features,
                   float* y, RowStatistics* statistics) {
    const float mean = row_mean(x, features);
    const float scale = 1.0f / __builtin_sqrtf(row_variance(x, features, mean) + epsilon);
    *statistics = {mean, scale};
    for (std::size_t i = 0; i < features; i += lane_count) {
        const Lanes centred = subtract(load_of(x, i, features), broadcast(mean));
        const Lanes normal = multiply(centred, broadcast(scale));
        store_of(y, i, features,
                 fma(normal, load_of(weight, i, features), load_of(bias, i, features)));
    }
}

HWY_INLINE Lanes normal_of(const float* x, std::size_t i, std::size_t features,
                           const RowStatistics& statistics) {
    const Lanes centred =
        subtract(load_of(x, i, features, statistics.mean), broadcast(statistics.mean));
    return multiply(centred, broadcast(statistics.scale));
}

/// dx = scale (g - mean(g) - n mean(g n)), with g = gradient * weight, n the normalised row.
/// `residual` is added if it is not nullptr.
void input_gradient_row(const float* x, const RowStatistics* statistics, const float* weight,
                        const float* gradient, const float* residual, std::size_t features,
                        float* dx) {
    Lanes sum = broadcast(0.0f);
    Lanes projected = broadcast(0.0f);
    for (std::size_t i = 0; i < features; i += lane_count) {
        const Lanes g = multiply(load_of(gradient, i, features), load_of(weight, i, features));
        sum = add(sum, g);
        projected = fma(g, normal_of(x, i, features, *statistics), projected);
    }
    const float count = static_cast<float>(features);
    const Lanes mean_g = broadcast(sum_lanes(sum) / count);
    const Lanes mean_gn = broadcast(-(sum_lanes(projected) / count));
    const Lanes scale = broadcast(statistics->scale);
    for (std::size_t i = 0; i < features; i += lane_count) {
        const Lanes g = multiply(load_of(gradient, i, features), load_of(weight, i, features));
        const Lanes n = normal_of(x, i, features, *statistics);
        const Lanes inner = fma(n, mean_gn, subtract(g, mean_g));
        store_of(dx, i, features,
                 residual == nullptr ? multiply(inner, scale)
                                     : fma(inner, scale, load_of(residual, i, features)));
    }
}

/// Sixteen columns of one token block.
void parameter_gradients_strip(const float* x, const RowStatistics* statistics,
                               const float* gradient, std::size_t rows, std::size_t first,
                               std::size_t features, bool add_up, float* dweight, float* dbias) {
    Lanes weight_sum = broadcast(0.0f);
    Lanes bias_sum = broadcast(0.0f);
    for (std::size_t row = 0; row < rows; ++row) {
        const Lanes g = load_of(gradient + row * features, first, features);
        const Lanes n = normal_of(x + row * features, first, features, statistics[row]);
        weight_sum = fma(g, n, weight_sum);
        bias_sum = add(bias_sum, g);
    }
    if (add_up) {
        weight_sum = add(load_of(dweight, first, features), weight_sum);
        bias_sum = add(load_of(dbias, first, features), bias_sum);
    }
    store_of(dweight, first, features, weight_sum);
    store_of(dbias, first, features, bias_sum);
}

void bias_gradient_strip(const float* gradient, std::size_t rows, std::size_t first,
                         std::size_t features, bool add_up, float* dbias) {
    Lanes sum = broadcast(0.0f);
    for (std::size_t row = 0; row < rows; ++row)
        sum = add(sum, load_of(gradient + row * features, first, features));
    store_of(dbias, first, features, add_up ? add(load_of(dbias, first, features), sum) : sum);
}

constexpr std::size_t strip_columns = lane_count;

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace spillway::engine
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::engine {
namespace {

/// Rows of a task: no row depends on another, so this changes no bit.
constexpr std::size_t rows_per_task = 32;
/// Columns of a task of a sum over tokens: a whole number of cache lines.
constexpr std::size_t columns_per_task = 64;

std::size_t parts(std::size_t extent, std::size_t width) {
    return (extent + width - 1) / width;
}

template <typename Row>
void over_tokens(ComputePool& pool, std::size_t tokens, const Row& row) {
    pool.for_each(parts(tokens, rows_per_task), [&](std::size_t task) {
        const std::size_t end = std::min(tokens, (task + 1) * rows_per_task);
        for (std::size_t token = task * rows_per_task; token < end; ++token)
            row(token);
    });
}

/// Calls strip(block, first column, whether to add to what stands there), for each strip of columns
/// its token blocks in order.
template <typename Strip>
void over_strips(ComputePool& pool, const TokenRows& rows, std::size_t features,
                 std::size_t strip_width, Contribution contribution, const Strip& strip) {
    pool.for_each(parts(features, columns_per_task), [&](std::size_t task) {
        const std::size_t end = std::min(features, (task + 1) * columns_per_task);
        for (std::size_t i = 0; i < rows.blocks(); ++i)
            for (std::size_t c = task * columns_per_task; c < end; c += strip_width)
                strip(rows.block(i), c, i > 0 || contribution == Contribution::further);
    });
}

}  // namespace

void layer_norm(ComputePool& pool, std::size_t tokens, std::size_t features, const float* input,
                const float* weight, const float* bias, float* output, RowStatistics* statistics) {
    const auto kernel = SPILLWAY_KERNEL(pool.isa(), normalise_row);
    over_tokens(pool, tokens, [&](std::size_t token) {
        kernel(input + token * features, weight, bias, features, output + token * features,
               statistics + token);
    });
}

void layer_norm_input_gradient(ComputePool& pool, std::size_t tokens, std::size_t features,
                               const float* input, const RowStatistics* statistics,
                               const float* weight, const float* gradient, InputGradient mode,
                               float* input_gradient) {
    const auto kernel = SPILLWAY_KERNEL(pool.isa(), input_gradient_row);
    over_tokens(pool, tokens, [&](std::size_t token) {
        float* to = input_gradient + token * features;
        kernel(input + token * features, statistics + token, weight, gradient + token * features,
               mode == InputGradient::add_to_residual ? to : nullptr, features, to);
    });
}

void layer_norm_parameter_gradients(ComputePool& pool, const TokenRows& rows, std::size_t features,
                                    const float* input, const RowStatistics* statistics,
                                    const float* gradient, Contribution contribution,
                                    float* weight_gradient, float* bias_gradient) {
    const auto kernel = SPILLWAY_KERNEL(pool.isa(), parameter_gradients_strip);
    over_strips(pool, rows, features, HWY_NAMESPACE::strip_columns, contribution,
                [&](const TokenRows::Block& block, std::size_t first, bool add_up) {
                    const std::size_t at = block.first_row * features;
                    kernel(input + at, statistics + block.first_row, gradient + at, block.rows,
                           first, features, add_up, weight_gradient, bias_gradient);
                });
}

void bias_gradient(ComputePool& pool, const TokenRows& rows, std::size_t features,
                   const float* gradient, Contribution contribution, float* bias_gradient) {
    const auto kernel = SPILLWAY_KERNEL(pool.isa(), bias_gradient_strip);
    over_strips(pool, rows, features, HWY_NAMESPACE::strip_columns, contribution,
                [&](const TokenRows::Block& block, std::size_t first, bool add_up) {
                    kernel(gradient + block.first_row * features, block.rows, first, features,
                           add_up, bias_gradient);
                });
}

}  // namespace spillway::engine
#endif  // HWY_ONCE
