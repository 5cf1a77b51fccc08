// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <span>
#include <thread>

#include "nvme/detail/open_requests.h"
#include "nvme/io_queue.h"

namespace spillway::nvme::detail {

/// Reports requests that have been open for too long, each once, on a thread of its own: the
/// dispatcher's may be held up by the very drive that is reported.
class IoWatchdog {
  public:
    using Report = std::function<void(std::span<const PendingIo>)>;

    IoWatchdog(OpenRequests& open, double deadline_s, Report report);
    ~IoWatchdog();                           ///< no report is running or comes afterwards
    IoWatchdog(const IoWatchdog&) = delete;  // its thread points at it
    IoWatchdog& operator=(const IoWatchdog&) = delete;

  private:
    void run();

    OpenRequests& open_;
    const std::chrono::nanoseconds deadline_;
    const Report report_;
    std::mutex mutex_;
    std::condition_variable stop_condition_;
    bool stopping_ = false;
    std::thread thread_;  ///< last: it uses all of the above
};

}  // namespace spillway::nvme::detail
