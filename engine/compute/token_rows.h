// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <algorithm>
#include <cstddef>

/// engine/compute/: fp32 kernels of a transformer on the CPU. Everything here gives the same bits
/// for every number of threads, every instruction set and every way of cutting a batch into
/// micro-batches: sums over tokens run sequence by sequence, in fixed blocks of tokens inside each.
/// Matrices are row-major; weights are [outputs, inputs]; activations are [tokens, features],
/// dense. Functions that take a ComputePool use its threads and return when done; arrays must not
/// overlap unless a comment says so.
namespace spillway::engine {

/// Tokens of a block: the unit in which products and sums over tokens are cut inside a sequence.
inline constexpr std::size_t token_block = 256;

/// The rows of one micro-batch: `sequences` runs of `sequence_tokens` rows.
struct TokenRows {
    std::size_t sequences = 0;
    std::size_t sequence_tokens = 0;

    [[nodiscard]] std::size_t tokens() const noexcept { return sequences * sequence_tokens; }
    [[nodiscard]] std::size_t blocks_per_sequence() const noexcept {
        return (sequence_tokens + token_block - 1) / token_block;
    }
    [[nodiscard]] std::size_t blocks() const noexcept { return sequences * blocks_per_sequence(); }

    struct Block {
        std::size_t first_row, rows;
    };
    /// Block `index` of blocks(), in order of rows. The last block of each sequence may be shorter.
    [[nodiscard]] Block block(std::size_t index) const noexcept {
        const std::size_t sequence = index / blocks_per_sequence();
        const std::size_t first = index % blocks_per_sequence() * token_block;
        return {sequence * sequence_tokens + first, std::min(token_block, sequence_tokens - first)};
    }
};

/// Whether a gradient is the first one written to a place or is added to what stands there.
enum class Contribution { first, further };

}  // namespace spillway::engine
