// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/sim_link.h"

#include <cmath>
#include <thread>

namespace spillway::cuda {

SimLink::Clock::time_point SimLink::transfer(std::size_t bytes, Clock::time_point ready) {
    if (bytes_per_s_ == 0)
        return ready;
    const std::scoped_lock lock(mutex_);
    if (ready > free_at_) {
        busy_since_ = ready;
        busy_bytes_ = 0;
    }
    busy_bytes_ += bytes;
    const double busy_ns = std::ceil(static_cast<double>(busy_bytes_) / bytes_per_s_ * 1e9);
    free_at_ = busy_since_ + std::chrono::nanoseconds(static_cast<std::int64_t>(busy_ns));
    return free_at_;
}

void wait_precisely(SimLink::Clock::time_point until) {
    constexpr std::chrono::microseconds spin{20};
    if (until - SimLink::Clock::now() > spin)
        std::this_thread::sleep_until(until - spin);
    while (SimLink::Clock::now() < until)
        std::this_thread::yield();
}

}  // namespace spillway::cuda
