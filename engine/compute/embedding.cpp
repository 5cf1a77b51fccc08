// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/compute/embedding.h"

#include <algorithm>

namespace spillway::engine {
namespace {

/// Sizes of tasks. Every element is computed by itself, in token order, so they change no bit.
constexpr std::size_t rows_per_task = 32;
constexpr std::size_t columns_per_task = 64;

std::size_t parts(std::size_t extent, std::size_t width) {
    return (extent + width - 1) / width;
}

void add_row(std::size_t count, const float* from, float* to) {
    for (std::size_t i = 0; i < count; ++i)
        to[i] += from[i];
}

template <typename Row>
void over_rows(ComputePool& pool, std::size_t count, const Row& row) {
    pool.for_each(parts(count, rows_per_task), [&](std::size_t task) {
        const std::size_t end = std::min(count, (task + 1) * rows_per_task);
        for (std::size_t i = task * rows_per_task; i < end; ++i)
            row(i);
    });
}

}  // namespace

void embed(ComputePool& pool, const TokenRows& rows, const TokenIds& tokens, std::size_t features,
           const float* token_table, const float* position_table, float* output) {
    over_rows(pool, rows.tokens(), [&](std::size_t row) {
        const std::size_t position = row % rows.sequence_tokens;
        const auto id = static_cast<std::size_t>(
            tokens.ids[row / rows.sequence_tokens * tokens.stride + position]);
        const float* token = token_table + id * features;
        const float* place = position_table + position * features;
        for (std::size_t i = 0; i < features; ++i)
            output[row * features + i] = token[i] + place[i];
    });
}

void token_table_gradient(ComputePool& pool, const TokenRows& rows, const TokenIds& tokens,
                          std::size_t features, std::size_t vocabulary, const float* gradient,
                          Contribution contribution, float* token_table_gradient) {
    if (contribution == Contribution::first)
        over_rows(pool, vocabulary, [&](std::size_t id) {
            std::fill_n(token_table_gradient + id * features, features, 0.0f);
        });
    pool.for_each(parts(features, columns_per_task), [&](std::size_t task) {
        const std::size_t first = task * columns_per_task;
        const std::size_t width = std::min(columns_per_task, features - first);
        for (std::size_t row = 0; row < rows.tokens(); ++row) {
            const auto id = static_cast<std::size_t>(
                tokens
                    .ids[row / rows.sequence_tokens * tokens.stride + row % rows.sequence_tokens]);
            add_row(width, gradient + row * features + first,
                    token_table_gradient + id * features + first);
        }
    });
}

void position_table_gradient(ComputePool& pool, const TokenRows& rows, std::size_t features,
                             std::size_t positions, const float* gradient,
                             Contribution contribution, float* position_table_gradient) {
    over_rows(pool, positions, [&](std::size_t position) {
        float* to = position_table_gradient + position * features;
        if (contribution == Contribution::first)
            std::fill_n(to, features, 0.0f);
        if (position >= rows.sequence_tokens)
            return;
        for (std::size_t sequence = 0; sequence < rows.sequences; ++sequence)
            add_row(features, gradient + (sequence * rows.sequence_tokens + position) * features,
                    to);
    });
}

}  // namespace spillway::engine
