// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string_view>
#include <vector>

#include "nvme/io_backend.h"

namespace spillway::testing {

enum class CompletionOrder { in_order, reversed, shuffled };

/// How a FakeBackend departs from an honest one. Everything left empty is honest. The functions run
/// on the queue's thread.
struct FakeScript {
    std::size_t depth = 32;
    /// Asked for each operation with its number in order of acceptance. A negative result or 0 is
    /// given back and nothing moves; a positive one moves that many bytes only; empty moves all.
    std::function<std::optional<std::int64_t>(const nvme::BackendOperation&, std::size_t number)>
        result;
    /// `result` is believed without moving anything, for requests larger than any memory.
    bool claims_only = false;
    /// How many of the offered operations submit() takes; may throw to play a broken backend.
    std::function<std::size_t(std::size_t offered)> accept;
    /// Runs at the start of each wait(); may throw to play a broken backend.
    std::function<void()> before_wait;
    /// How long each operation is in flight before its bytes move.
    std::chrono::microseconds delay{0};
    /// Most completions a wait() gives back.
    std::size_t most_completions = ~std::size_t{0};
    CompletionOrder order = CompletionOrder::in_order;
};

/// What a FakeBackend was asked to do; outlives it. Read it when the queue is gone or idle.
struct FakeLog {
    std::vector<nvme::BackendOperation> operations;  ///< accepted, in order
    std::size_t most_in_flight = 0;
};

/// Scripted completions for tests of the queue's logic; by default performs the I/O itself with
/// pread and pwrite when its operation completes (so memory moves late, as with a drive).
class FakeBackend final : public nvme::IoBackend {
  public:
    FakeBackend(FakeScript script, std::shared_ptr<FakeLog> log);

    [[nodiscard]] std::string_view name() const noexcept override { return "fake"; }
    [[nodiscard]] std::size_t depth() const noexcept override { return script_.depth; }
    std::size_t submit(std::span<const nvme::BackendOperation> operations) override;
    std::size_t wait(std::span<nvme::BackendCompletion> completions) override;
    void wake() noexcept override;

  private:
    using Clock = std::chrono::steady_clock;
    struct InFlight {
        nvme::BackendOperation operation;
        std::size_t number = 0;
        Clock::time_point due;
    };

    InFlight take_next();
    std::int64_t perform(const InFlight& one);

    FakeScript script_;
    std::shared_ptr<FakeLog> log_;
    std::deque<InFlight> in_flight_;  ///< touched by the queue's thread alone
    std::mt19937_64 random_{1};
    std::mutex mutex_;
    std::condition_variable woken_condition_;
    bool woken_ = false;
};

}  // namespace spillway::testing
