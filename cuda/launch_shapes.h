// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <algorithm>
#include <cstddef>

#include "cuda/kernel_stream.h"
#include "cuda/kernels/parameters.h"

namespace spillway::cuda {

[[nodiscard]] constexpr std::size_t blocks_for(std::size_t elements, std::size_t each) noexcept {
    return (elements + each - 1) / each;
}

/// For a kernel that shares out elements. No more blocks than fill the largest device several times
/// over: more would only start and end.
[[nodiscard]] constexpr LaunchShape elementwise_shape(std::size_t elements) noexcept {
    constexpr std::size_t most_blocks = 4096;
    return {.blocks = static_cast<unsigned>(
                std::min(blocks_for(elements, elementwise_threads), most_blocks)),
            .threads = elementwise_threads};
}

}  // namespace spillway::cuda
