// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/detail/io_watchdog.h"

#include <utility>

namespace spillway::nvme::detail {

IoWatchdog::IoWatchdog(OpenRequests& open, double deadline_s, Report report)
    : open_(open),
      deadline_(std::chrono::duration_cast<std::chrono::nanoseconds>(
          std::chrono::duration<double>(deadline_s))),
      report_(std::move(report)) {
    thread_ = std::thread([this] { run(); });
}

IoWatchdog::~IoWatchdog() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    stop_condition_.notify_one();
    thread_.join();
}

void IoWatchdog::run() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
        const auto overdue = open_.take_overdue(deadline_);
        if (!overdue.requests.empty()) {
            lock.unlock();
            report_(overdue.requests);
            lock.lock();
        }
        stop_condition_.wait_until(lock, overdue.next_look, [this] { return stopping_; });
    }
}

}  // namespace spillway::nvme::detail
