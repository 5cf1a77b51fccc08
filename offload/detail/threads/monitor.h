// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

namespace spillway::offload::detail {

/// The one lock under which the engine's threads agree: chunk versions, unit slots, gradient
/// counts. What it guards changes a few times per chunk, so one mutex and one condition serve all.
/// It also carries the poison: after the first failure every wait throws that failure, so no thread
/// waits for ever.
class Monitor {
  public:
    using Lock = std::unique_lock<std::mutex>;

    [[nodiscard]] Lock lock() { return Lock(mutex_); }

    /// Blocks until `ready()`; throws the poison. `lock` must be this monitor's.
    template <typename Ready>
    void wait(Lock& lock, Ready ready) {
        changed_.wait(lock, [&] { return poison_ != nullptr || ready(); });
        if (poison_)
            std::rethrow_exception(poison_);
    }
    /// As wait(), but for `limit` at most: whether it became ready.
    template <typename Ready>
    [[nodiscard]] bool wait_for(Lock& lock, std::chrono::milliseconds limit, Ready ready) {
        const bool done =
            changed_.wait_for(lock, limit, [&] { return poison_ != nullptr || ready(); });
        if (poison_)
            std::rethrow_exception(poison_);
        return done;
    }
    void notify() { changed_.notify_all(); }

    /// Keeps the first error and wakes everyone.
    void poison(std::exception_ptr error) {
        const Lock held(mutex_);
        if (!poison_)
            poison_ = std::move(error);
        changed_.notify_all();
    }
    void throw_if_poisoned() {
        const Lock held(mutex_);
        if (poison_)
            std::rethrow_exception(poison_);
    }
    [[nodiscard]] bool poisoned(const Lock&) const noexcept { return poison_ != nullptr; }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::exception_ptr poison_;
};

}  // namespace spillway::offload::detail
