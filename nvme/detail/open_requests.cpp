// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/detail/open_requests.h"

#include <chrono>
#include <utility>

namespace spillway::nvme::detail {

void OpenRequests::add(RequestState& request) {
    const std::lock_guard lock(mutex_);
    request.submitted_at = std::chrono::steady_clock::now();
    request.older = std::exchange(newest_, &request);
    (request.older == nullptr ? oldest_ : request.older->newer) = &request;
}

void OpenRequests::remove(RequestState& request) {
    const std::lock_guard lock(mutex_);
    (request.older == nullptr ? oldest_ : request.older->newer) = request.newer;
    (request.newer == nullptr ? newest_ : request.newer->older) = request.older;
}

namespace {

PendingIo describe(const RequestState& state, std::chrono::steady_clock::time_point now) {
    const IoRequest& request = state.request;
    return {request.operation, request.file->path(), request.offset_bytes, request.length_bytes,
            std::chrono::duration<double>(now - state.submitted_at).count()};
}

}  // namespace

std::vector<PendingIo> OpenRequests::list() const {
    std::vector<PendingIo> all;
    const std::lock_guard lock(mutex_);
    const auto now = std::chrono::steady_clock::now();
    for (const RequestState* one = oldest_; one != nullptr; one = one->newer)
        all.push_back(describe(*one, now));
    return all;
}

OpenRequests::Overdue OpenRequests::take_overdue(std::chrono::nanoseconds deadline) {
    const std::lock_guard lock(mutex_);
    const auto now = std::chrono::steady_clock::now();
    Overdue overdue{{}, now + deadline};
    for (RequestState* one = oldest_; one != nullptr; one = one->newer) {
        if (one->was_overdue)
            continue;
        const auto due = one->submitted_at + deadline;
        if (due > now) {
            overdue.next_look = due;
            break;
        }
        one->was_overdue = true;
        overdue.requests.push_back(describe(*one, now));
    }
    return overdue;
}

}  // namespace spillway::nvme::detail
