// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/detail/io_meter.h"

namespace spillway::nvme::detail {

void IoMeter::Busy::began() {
    if (in_flight++ == 0)
        since = Clock::now();
}

void IoMeter::Busy::ended() {
    if (--in_flight == 0)
        total += Clock::now() - since;
}

double IoMeter::Busy::seconds() const {
    const auto running = in_flight == 0 ? Clock::duration{} : Clock::now() - since;
    return std::chrono::duration<double>(total + running).count();
}

IoMeter::Busy* IoMeter::busy_of(IoOperation operation) {
    switch (operation) {
        case IoOperation::read:
            return &reads_;
        case IoOperation::write:
            return &writes_;
        case IoOperation::flush:
            break;
    }
    return nullptr;
}

void IoMeter::request_accepted() {
    const std::lock_guard lock(mutex_);
    ++counts_.requests;
}

void IoMeter::operation_began(IoOperation operation) {
    const std::lock_guard lock(mutex_);
    if (Busy* busy = busy_of(operation))
        busy->began();
}

void IoMeter::operation_ended(IoOperation operation) {
    const std::lock_guard lock(mutex_);
    if (Busy* busy = busy_of(operation))
        busy->ended();
}

void IoMeter::bytes_moved(IoOperation operation, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    (operation == IoOperation::read ? counts_.read_bytes : counts_.written_bytes) += bytes;
}

void IoMeter::flush_done() {
    const std::lock_guard lock(mutex_);
    ++counts_.flushes;
}

IoStatistics IoMeter::statistics() const {
    const std::lock_guard lock(mutex_);
    IoStatistics snapshot = counts_;
    snapshot.read_busy_s = reads_.seconds();
    snapshot.write_busy_s = writes_.seconds();
    return snapshot;
}

}  // namespace spillway::nvme::detail
