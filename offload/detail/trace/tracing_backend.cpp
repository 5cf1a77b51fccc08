// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/trace/tracing_backend.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace spillway::offload::detail {
namespace {

using Cause = TraceCause;

const char* operation_name(nvme::IoOperation operation) noexcept {
    switch (operation) {
        case nvme::IoOperation::read:
            return "read";
        case nvme::IoOperation::write:
            return "write";
        case nvme::IoOperation::flush:
            break;
    }
    return "flush";
}

}  // namespace

TracingBackend::TracingBackend(std::unique_ptr<nvme::IoBackend> inner, StepTrace& trace,
                               std::size_t drive)
    : ForwardingBackend(std::move(inner)), trace_(trace), flights_(depth()) {
    reads_.name = fmt::format("drive {} reads", drive);
    writes_.name = fmt::format("drive {} writes", drive);
    // Reads wait for slots: of what is updated, written, copied or computed with.
    reads_.lane = trace.add_lane({reads_.name,
                                  Cause::nvme_read,
                                  {Cause::commit, Cause::cpu, Cause::nvme_write, Cause::link,
                                   Cause::weights, Cause::compute, Cause::gradients}});
    // Writes wait for what is to be written.
    writes_.lane = trace.add_lane({writes_.name,
                                   Cause::nvme_write,
                                   {Cause::cpu, Cause::commit, Cause::nvme_read, Cause::compute,
                                    Cause::link, Cause::gradients}});
}

/// A backend may do the whole work in here.
std::size_t TracingBackend::submit(std::span<const nvme::BackendOperation> operations) {
    for (const auto& operation : operations)
        begin(operation);
    std::size_t accepted = 0;
    try {
        accepted = std::min(inner().submit(operations), operations.size());
    } catch (...) {
        for (const auto& operation : operations)
            leave(operation.id).drop();
        throw;
    }
    for (const auto& operation : operations.subspan(accepted))
        leave(operation.id).drop();
    return accepted;
}

std::size_t TracingBackend::wait(std::span<nvme::BackendCompletion> completions) {
    const auto count = std::min(inner().wait(completions), completions.size());
    for (const auto& completion : completions.first(count))
        leave(completion.id).end();
    return count;
}

void TracingBackend::begin(const nvme::BackendOperation& operation) {
    auto& direction = operation.operation == nvme::IoOperation::read ? reads_ : writes_;
    const auto free = std::ranges::find(direction.taken, false);
    const auto row = static_cast<std::size_t>(free - direction.taken.begin());
    if (free == direction.taken.end()) {
        direction.rows.push_back(trace_.add_row(
            direction.lane, row == 0 ? "" : fmt::format("{} ({})", direction.name, row + 1)));
        direction.taken.push_back(true);
    } else {
        *free = true;
    }
    flights_[operation.id] = {&direction, row};
    direction.rows[row].begin(operation_name(operation.operation),
                              {"offset", operation.offset_bytes, operation.length_bytes});
}

TraceRow TracingBackend::leave(std::size_t id) {
    if (id >= flights_.size() || flights_[id].direction == nullptr)
        return {};  // the queue finds that wrong
    auto& direction = *std::exchange(flights_[id].direction, nullptr);
    direction.taken[flights_[id].row] = false;
    return direction.rows[flights_[id].row];
}

}  // namespace spillway::offload::detail
