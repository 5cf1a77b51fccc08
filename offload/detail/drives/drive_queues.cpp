// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/drives/drive_queues.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "offload/detail/trace/tracing_backend.h"

namespace spillway::offload::detail {
namespace {

constexpr std::size_t most_told = 4;

std::string overdue_text(std::span<const nvme::PendingIo> pending) {
    std::string text = "a drive does not answer: ";
    for (const auto& request : pending.first(std::min(pending.size(), most_told)))
        text += request.text() + "; ";
    return text +
           fmt::format("{} requests are open in all; waiting for them goes on", pending.size());
}

nvme::IoQueue::Options queue_options(const DriveIo& io, const IoOptions& options,
                                     nvme::CompletionSignal& ended) {
    nvme::IoQueue::Options queue;
    queue.depth = io.depth;
    queue.max_operation_bytes = io.operation_bytes;
    queue.write_depth = std::max<std::size_t>(io.depth * 3 / 4, 1);
    queue.ended = &ended;
    if (options.on_overdue) {
        queue.deadline_s = options.deadline_s;
        queue.on_overdue = [tell = options.on_overdue](std::span<const nvme::PendingIo> pending) {
            tell(overdue_text(pending));
        };
    }
    return queue;
}

}  // namespace

DriveQueues::DriveQueues(std::size_t drives, const IoOptions& options,
                         const std::vector<std::span<std::byte>>& staging, StepTrace* trace) {
    for (std::size_t drive = 0; drive < std::max<std::size_t>(drives, 1); ++drive) {
        const auto& io = options.of(drive);
        auto backend = options.backend_factory ? options.backend_factory(io.depth)
                                               : nvme::make_backend(io.backend, io.depth);
        if (trace != nullptr)
            backend = std::make_unique<TracingBackend>(std::move(backend), *trace, drive);
        auto queue = queue_options(io, options, *ended_);
        queue.fixed.memory = staging;
        queues_.push_back(std::make_unique<nvme::IoQueue>(std::move(backend), std::move(queue)));
    }
}

nvme::IoStatistics DriveQueues::sum() const {
    nvme::IoStatistics sum;
    for (const auto& queue : queues_) {
        const auto one = queue->statistics();
        sum.read_bytes += one.read_bytes;
        sum.written_bytes += one.written_bytes;
        sum.requests += one.requests;
        sum.flushes += one.flushes;
        sum.read_busy_s += one.read_busy_s;
        sum.write_busy_s += one.write_busy_s;
    }
    return sum;
}

std::vector<std::string> DriveQueues::notes() const {
    std::vector<std::string> all;
    for (const auto& queue : queues_)
        for (const std::string& note : queue->notes())
            if (std::ranges::find(all, note) == all.end())
                all.push_back(note);
    return all;
}

}  // namespace spillway::offload::detail
