// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <functional>
#include <thread>
#include <utility>

#include "offload/detail/threads/monitor.h"

namespace spillway::offload::detail {

/// A thread of the engine. What its body throws poisons the monitor; stop() asks it to end and
/// joins.
class EngineThread {
  public:
    explicit EngineThread(Monitor& monitor) noexcept : monitor_(monitor) {}
    ~EngineThread() { stop(); }
    EngineThread(const EngineThread&) = delete;  // the thread points at it
    EngineThread& operator=(const EngineThread&) = delete;

    /// Once, when everything the body touches is there.
    void start(std::function<void()> body) {
        thread_ = std::thread([this, run = std::move(body)] {
            try {
                run();
            } catch (...) {
                monitor_.poison(std::current_exception());
            }
        });
    }
    void stop() {
        {
            const auto lock = monitor_.lock();
            stopping_ = true;
            monitor_.notify();
        }
        if (thread_.joinable())
            thread_.join();
    }
    /// Read under the monitor's lock; part of what every wait of the body asks.
    [[nodiscard]] bool stopping() const noexcept { return stopping_; }

  private:
    Monitor& monitor_;
    bool stopping_ = false;
    std::thread thread_;
};

}  // namespace spillway::offload::detail
