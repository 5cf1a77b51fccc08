// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/sim_event.h"

#include <stdexcept>
#include <utility>

#include <fmt/format.h>

namespace spillway::cuda {

SimEventState::SimEventState(std::string stream_name, std::thread::id worker)
    : stream_name_(std::move(stream_name)), worker_(worker) {}

bool SimEventState::done() const {
    const std::scoped_lock lock(mutex_);
    return done_;
}

void SimEventState::wait() {
    if (std::this_thread::get_id() == worker_ && !done())
        throw std::logic_error(
            fmt::format("stream '{}': a kernel waits for an event behind itself", stream_name_));
    if (const auto failure = outcome())
        std::rethrow_exception(failure);
}

std::exception_ptr SimEventState::outcome() {
    std::unique_lock lock(mutex_);
    happened_.wait(lock, [this] { return done_; });
    return failure_;
}

SimEventState::Clock::time_point SimEventState::happened_at() const {
    const std::scoped_lock lock(mutex_);
    return happened_at_;
}

void SimEventState::happen(Clock::time_point at, std::exception_ptr failure) {
    // Under the lock: a waiter that wakes up may destroy the state.
    const std::scoped_lock lock(mutex_);
    done_ = true;
    happened_at_ = at;
    failure_ = std::move(failure);
    happened_.notify_all();
}

}  // namespace spillway::cuda
