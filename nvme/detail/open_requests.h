// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <chrono>
#include <mutex>
#include <vector>

#include "nvme/detail/request_state.h"
#include "nvme/io_queue.h"

namespace spillway::nvme::detail {

/// The requests that have been submitted and have not ended, oldest first: kept apart from the
/// dispatcher, whose thread may itself be held up by the drive that is asked about. Thread-safe.
class OpenRequests {
  public:
    OpenRequests() = default;
    OpenRequests(const OpenRequests&) = delete;  // the requests point at each other and at it
    OpenRequests& operator=(const OpenRequests&) = delete;

    void add(RequestState& request);
    /// Before anyone is told that it ended: from then on its file may be gone.
    void remove(RequestState& request);
    [[nodiscard]] std::vector<PendingIo> list() const;

    struct Overdue {
        std::vector<PendingIo> requests;                  ///< oldest first
        std::chrono::steady_clock::time_point next_look;  ///< nothing can be overdue before
    };
    /// What was submitted `deadline` ago or earlier and has not been taken before.
    [[nodiscard]] Overdue take_overdue(std::chrono::nanoseconds deadline);

  private:
    mutable std::mutex mutex_;
    RequestState* oldest_ = nullptr;
    RequestState* newest_ = nullptr;
};

}  // namespace spillway::nvme::detail
