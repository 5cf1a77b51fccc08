// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "nvme/io_queue.h"

namespace spillway::nvme::detail {

/// Counts what an IoQueue did. Thread-safe.
class IoMeter {
  public:
    void request_accepted();
    /// An operation goes to the backend / came back from it.
    void operation_began(IoOperation operation);
    void operation_ended(IoOperation operation);
    void bytes_moved(IoOperation operation, std::size_t bytes);
    void flush_done();
    [[nodiscard]] IoStatistics statistics() const;

  private:
    using Clock = std::chrono::steady_clock;

    /// Time with at least one operation in flight.
    struct Busy {
        std::size_t in_flight = 0;
        Clock::time_point since;
        Clock::duration total{};

        void began();
        void ended();
        [[nodiscard]] double seconds() const;
    };

    [[nodiscard]] Busy* busy_of(IoOperation operation);

    mutable std::mutex mutex_;
    IoStatistics counts_;  ///< its times stay 0: they are taken from the two below
    Busy reads_;
    Busy writes_;
};

}  // namespace spillway::nvme::detail
