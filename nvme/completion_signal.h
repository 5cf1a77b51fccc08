// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <atomic>
#include <cstdint>

namespace spillway::nvme {

/// Tells that some request ended, on any of the queues that it was given to, for who waits for the
/// first of several: take now(), look whether one of them is done, and if none is,
/// wait_beyond(what now() gave). An end in between is not missed. Thread-safe.
class CompletionSignal {
  public:
    [[nodiscard]] std::uint32_t now() const noexcept {
        return ended_.load(std::memory_order_acquire);
    }
    /// Returns once a request has ended since now() gave `seen`.
    void wait_beyond(std::uint32_t seen) const noexcept {
        ended_.wait(seen, std::memory_order_acquire);
    }
    void notify() noexcept {
        ended_.fetch_add(1, std::memory_order_acq_rel);
        ended_.notify_all();
    }

  private:
    std::atomic<std::uint32_t> ended_{0};  ///< 32 bits: waited for by a futex on the value itself
};

}  // namespace spillway::nvme
