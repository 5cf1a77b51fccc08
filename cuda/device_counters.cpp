// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/device_counters.h"

namespace spillway::cuda {
namespace {

constexpr auto relaxed = std::memory_order_relaxed;

double seconds(const std::atomic<std::int64_t>& nanoseconds) {
    return static_cast<double>(nanoseconds.load(relaxed)) * 1e-9;
}

}  // namespace

void DeviceCounters::count_copy(CopyDirection direction, std::uint64_t bytes,
                                std::chrono::nanoseconds busy) noexcept {
    const bool to_device = direction == CopyDirection::to_device;
    (to_device ? to_device_bytes_ : to_host_bytes_).fetch_add(bytes, relaxed);
    (to_device ? to_device_busy_ns_ : to_host_busy_ns_).fetch_add(busy.count(), relaxed);
}

void DeviceCounters::count_kernel(std::chrono::nanoseconds busy) noexcept {
    kernel_busy_ns_.fetch_add(busy.count(), relaxed);
}

DeviceStatistics DeviceCounters::snapshot() const noexcept {
    DeviceStatistics statistics;
    statistics.to_device_bytes = to_device_bytes_.load(relaxed);
    statistics.to_host_bytes = to_host_bytes_.load(relaxed);
    statistics.to_device_busy_s = seconds(to_device_busy_ns_);
    statistics.to_host_busy_s = seconds(to_host_busy_ns_);
    statistics.kernel_busy_s = seconds(kernel_busy_ns_);
    return statistics;
}

}  // namespace spillway::cuda
