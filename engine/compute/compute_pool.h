// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "cpu_optim/isa.h"

namespace spillway::engine {

/// More than one product may use: OpenBLAS is built for a fixed number of threads.
inline constexpr std::size_t most_threads = 256;

/// The threads that compute, as a oneTBB arena, and the instruction set of the fused kernels.
/// Kernels are handed it; nothing in engine/compute starts threads of its own. Thread-safe.
class ComputePool {
  public:
    /// `threads` >= 1, counting the caller.
    ComputePool(std::size_t threads, cpu_optim::Isa isa);
    ~ComputePool();
    ComputePool(const ComputePool&) = delete;
    ComputePool& operator=(const ComputePool&) = delete;

    [[nodiscard]] std::size_t threads() const noexcept;
    [[nodiscard]] cpu_optim::Isa isa() const noexcept;
    /// Runs body(i) for i in [0, count), each exactly once, on all threads, and returns when all
    /// are done. The first exception is rethrown.
    void for_each(std::size_t count, const std::function<void(std::size_t)>& body);

  private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace spillway::engine
