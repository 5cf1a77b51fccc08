// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>

#include "cuda/device.h"

namespace spillway::cuda {

/// An event of a simulated stream: happens once, with or without a failure before it. Thread-safe.
class SimEventState final : public Event::State {
  public:
    using Clock = std::chrono::steady_clock;

    SimEventState(std::string stream_name, std::thread::id worker);

    [[nodiscard]] bool done() const override;
    /// Throws the failure; std::logic_error where a kernel waits for an event behind itself.
    void wait() override;

    /// Waits without throwing the failure; returns it.
    [[nodiscard]] std::exception_ptr outcome();
    /// When it happened on the simulated clock, which may be a little earlier than on the real one.
    /// Call after it has happened.
    [[nodiscard]] Clock::time_point happened_at() const;
    void happen(Clock::time_point at, std::exception_ptr failure);

  private:
    const std::string stream_name_;
    const std::thread::id worker_;
    mutable std::mutex mutex_;
    std::condition_variable happened_;
    bool done_ = false;
    Clock::time_point happened_at_;
    std::exception_ptr failure_;
};

}  // namespace spillway::cuda
