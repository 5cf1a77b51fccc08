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

std::vector<PendingIo> OpenRequests::list() const {
    std::vector<PendingIo> all;
    const std::lock_guard lock(mutex_);
    const auto now = std::chrono::steady_clock::now();
    for (const RequestState* one = oldest_; one != nullptr; one = one->newer) {
        const IoRequest& request = one->request;
        all.push_back({request.operation, request.file->path(), request.offset_bytes,
                       request.length_bytes,
                       std::chrono::duration<double>(now - one->submitted_at).count()});
    }
    return all;
}

}  // namespace spillway::nvme::detail
