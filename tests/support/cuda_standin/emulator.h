// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

/// Runs a kernel's blocks on the host, one after the other. The threads of a block are fibres that
/// take turns: each runs until it meets a barrier or exchanges values with its warp.
namespace spillway::standin {

struct Index {
    unsigned x = 0, y = 0, z = 0;
};

/// Threads that never wait for each other need no fibres, which is much faster.
enum class Threads { independent, cooperating };

struct Grid {
    unsigned blocks = 1;
    unsigned threads = 1;
    std::size_t shared_bytes = 0;
    Threads kind = Threads::cooperating;
};

/// Throws std::runtime_error where the threads of a block wait for each other for ever, or at all
/// if they are said to be independent.
void run_grid(const std::string& kernel, const Grid& grid, const std::function<void()>& thread);

// What a kernel may ask for; device_code.h gives it CUDA's names.
[[nodiscard]] const Index& thread_index();
[[nodiscard]] const Index& block_index();
[[nodiscard]] const Index& block_dimension();
[[nodiscard]] const Index& grid_dimension();
[[nodiscard]] std::byte* shared_memory();
/// All threads of the block that have not ended come here before any goes on.
void block_barrier();
/// The same; whether any of them came with `vote`.
[[nodiscard]] bool block_vote(bool vote);
/// The `bytes` that lane `from` of the warp gave, to each lane in `mask`: all of them come here
/// before any goes on.
void exchange_in_warp(std::uint32_t mask, void* value, std::size_t bytes, unsigned from);

inline constexpr unsigned warp_lanes = 32;

}  // namespace spillway::standin
