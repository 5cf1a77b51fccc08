// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include <sys/types.h>

#include "nvme/io_request.h"

namespace spillway::nvme::detail {

/// One request between submission and its end. The dispatcher alone touches it until `done`; from
/// then on it does not change, and any thread may read it.
struct RequestState {
    IoRequest request;
    pid_t owner = 0;            ///< the process whose dispatcher works on it
    std::size_t cut_bytes = 0;  ///< already cut into operations
    bool flush_cut = false;
    std::size_t open_operations = 0;  ///< cut and not yet ended
    IoResult result;
    std::chrono::steady_clock::time_point submitted_at;
    RequestState* older = nullptr;  ///< these three belong to OpenRequests
    RequestState* newer = nullptr;
    bool was_overdue = false;
    std::atomic<std::int32_t> done = 0;  ///< 32 bits: waited for by a futex on the value itself

    [[nodiscard]] bool is_done() const noexcept {
        return done.load(std::memory_order_acquire) != 0;
    }

    void wait() const noexcept { done.wait(0, std::memory_order_acquire); }

    void finish() noexcept {
        done.store(1, std::memory_order_release);
        done.notify_all();
    }

    /// Nothing is left to cut: all is, or an error made the rest pointless.
    [[nodiscard]] bool is_cut() const noexcept {
        if (!result.ok())
            return true;
        return request.operation == IoOperation::flush ? flush_cut
                                                       : cut_bytes == request.length_bytes;
    }
};

}  // namespace spillway::nvme::detail
