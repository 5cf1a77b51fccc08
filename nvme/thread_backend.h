// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "nvme/io_backend.h"

namespace spillway::nvme {

/// pread, pwrite or fdatasync.
[[nodiscard]] BackendCompletion perform_blocking(const BackendOperation& operation) noexcept;

/// What the threads of a ThreadBackend do.
struct BlockingCalls {
    /// Called from several at once; must not throw.
    std::function<BackendCompletion(const BackendOperation&)> perform = perform_blocking;
    std::function<void()> enter_thread = {};  ///< at the start of each, if given
};

/// Plain blocking system calls on a small pool: works wherever Linux does. The destructor lets
/// running operations end and drops those not begun.
class ThreadBackend final : public IoBackend {
  public:
    /// Blocking calls that run side by side; more keep a drive no busier, only the scheduler.
    static constexpr std::size_t most_threads = 8;

    /// Throws std::system_error when no thread can be started.
    explicit ThreadBackend(std::size_t depth, BlockingCalls calls = {});
    ~ThreadBackend() override;
    ThreadBackend(const ThreadBackend&) = delete;  // its threads point at it
    ThreadBackend& operator=(const ThreadBackend&) = delete;

    [[nodiscard]] std::string_view name() const noexcept override { return "threads"; }
    [[nodiscard]] std::size_t depth() const noexcept override { return depth_; }
    std::size_t submit(std::span<const BackendOperation> operations) override;
    std::size_t wait(std::span<BackendCompletion> completions) override;
    void wake() noexcept override;

  private:
    void work();
    void stop() noexcept;

    std::size_t depth_;
    const BlockingCalls calls_;
    std::mutex mutex_;  ///< guards all below but threads_
    std::condition_variable work_condition_;
    std::condition_variable finished_condition_;
    std::deque<BackendOperation> waiting_;
    std::vector<BackendCompletion> finished_;
    std::size_t in_flight_ = 0;  ///< submitted, not yet given back by wait()
    bool woken_ = false;
    bool stopping_ = false;
    std::vector<std::thread> threads_;
};

}  // namespace spillway::nvme
