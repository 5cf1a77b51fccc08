// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/measure/memory_pass.h"

#include <cstdint>

namespace spillway::engine {

std::size_t change_in_place(ComputePool& pool, std::span<std::byte> memory) {
    constexpr std::size_t piece_bytes = std::size_t{256} << 10;
    constexpr std::size_t piece_words = piece_bytes / sizeof(std::uint64_t);
    const auto words = std::span(reinterpret_cast<std::uint64_t*>(memory.data()),
                                 memory.size() / sizeof(std::uint64_t));
    const auto pieces = words.size() / piece_words;
    pool.for_each(pieces, [&](std::size_t piece) {
        for (auto& word : words.subspan(piece * piece_words, piece_words))
            word = (word ^ 0x9E3779B97F4A7C15u) + 1;
    });
    return 2 * pieces * piece_bytes;
}

}  // namespace spillway::engine
