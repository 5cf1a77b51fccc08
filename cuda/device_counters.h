// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "cuda/device.h"

namespace spillway::cuda {

enum class CopyDirection { to_device, to_host };

/// What a device's streams have done, summed. Thread-safe; each figure is exact, a snapshot taken
/// meanwhile is not one instant's.
class DeviceCounters {
  public:
    void count_copy(CopyDirection direction, std::uint64_t bytes,
                    std::chrono::nanoseconds busy) noexcept;
    void count_kernel(std::chrono::nanoseconds busy) noexcept;
    /// All fields but the peak, which memory knows.
    [[nodiscard]] DeviceStatistics snapshot() const noexcept;

  private:
    std::atomic<std::uint64_t> to_device_bytes_ = 0;
    std::atomic<std::uint64_t> to_host_bytes_ = 0;
    std::atomic<std::int64_t> to_device_busy_ns_ = 0;
    std::atomic<std::int64_t> to_host_busy_ns_ = 0;
    std::atomic<std::int64_t> kernel_busy_ns_ = 0;
};

}  // namespace spillway::cuda
