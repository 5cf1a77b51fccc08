// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/thread_backend.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <unistd.h>

namespace spillway::nvme {

BackendCompletion perform_blocking(const BackendOperation& operation) noexcept {
    const int descriptor = operation.file->descriptor();
    const auto offset = static_cast<off_t>(operation.offset_bytes);
    ssize_t moved = 0;
    switch (operation.operation) {
        case IoOperation::read:
            moved = ::pread(descriptor, operation.data, operation.length_bytes, offset);
            break;
        case IoOperation::write:
            moved = ::pwrite(descriptor, operation.data, operation.length_bytes, offset);
            break;
        case IoOperation::flush:
            moved = ::fdatasync(descriptor);
            break;
    }
    return {operation.id, moved < 0 ? -static_cast<std::int64_t>(errno) : moved};
}

ThreadBackend::ThreadBackend(std::size_t depth, BlockingCalls calls)
    : depth_(depth), calls_(std::move(calls)) {
    finished_.reserve(depth);
    const std::size_t threads = std::min(depth, most_threads);
    try {
        for (std::size_t i = 0; i < threads; ++i)
            threads_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {
        // A limit on threads: fewer serve as well, but none cannot.
        if (threads_.empty())
            throw;
    } catch (...) {
        stop();
        throw;
    }
}

ThreadBackend::~ThreadBackend() {
    stop();
}

void ThreadBackend::stop() noexcept {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    work_condition_.notify_all();
    for (std::thread& thread : threads_)
        thread.join();
}

std::size_t ThreadBackend::submit(std::span<const BackendOperation> operations) {
    std::size_t taken = 0;
    {
        const std::lock_guard lock(mutex_);
        taken = std::min(operations.size(), depth_ - in_flight_);
        const auto accepted = operations.first(taken);
        waiting_.insert(waiting_.end(), accepted.begin(), accepted.end());
        in_flight_ += taken;
    }
    for (std::size_t i = 0; i < std::min(taken, threads_.size()); ++i)
        work_condition_.notify_one();
    return taken;
}

std::size_t ThreadBackend::wait(std::span<BackendCompletion> completions) {
    std::unique_lock lock(mutex_);
    finished_condition_.wait(lock, [this] { return woken_ || !finished_.empty(); });
    woken_ = false;
    const std::size_t count = std::min(completions.size(), finished_.size());
    const auto end = finished_.begin() + static_cast<std::ptrdiff_t>(count);
    std::copy(finished_.begin(), end, completions.begin());
    finished_.erase(finished_.begin(), end);
    in_flight_ -= count;
    return count;
}

void ThreadBackend::wake() noexcept {
    const std::lock_guard lock(mutex_);
    woken_ = true;
    finished_condition_.notify_one();
}

void ThreadBackend::work() {
    if (calls_.enter_thread)
        calls_.enter_thread();
    std::unique_lock lock(mutex_);
    while (true) {
        work_condition_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
        if (stopping_)
            return;
        const BackendOperation operation = waiting_.front();
        waiting_.pop_front();
        lock.unlock();
        const BackendCompletion completion = calls_.perform(operation);
        lock.lock();
        finished_.push_back(completion);
        finished_condition_.notify_one();
    }
}

}  // namespace spillway::nvme
