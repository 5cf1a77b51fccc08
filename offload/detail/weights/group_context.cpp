// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/weights/group_context.h"

#include <fmt/format.h>

namespace spillway::offload::detail {

std::unique_ptr<StreamStall> GroupContext::stall_of(unsigned rank) const {
    auto& device = record(rank);
    return std::make_unique<StreamStall>(members[rank].compute, device.stalls,
                                         device.trace.compute_stalls);
}

std::string GroupContext::name(unsigned rank) const {
    return fmt::format("rank {} of {} ({})", rank, members.size(), members[rank].device.name());
}

RankFailed GroupContext::failed(unsigned rank, std::string_view why) const {
    return RankFailed(fmt::format("{} could not go on: {}", name(rank), why));
}

bool GroupContext::all_done(std::span<const cuda::Event> events) const {
    bool all = true;
    for (unsigned rank = 0; rank < events.size(); ++rank) {
        if (!events[rank].done()) {
            all = false;
            continue;
        }
        try {
            events[rank].wait();
        } catch (const std::exception& error) {
            throw failed(rank, error.what());
        }
    }
    return all;
}

void GroupContext::wait_for_all(std::string_view what, std::span<const cuda::Event> events,
                                const std::function<void()>& look) const {
    using Clock = std::chrono::steady_clock;
    const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                          std::chrono::duration<double>(2 * patience_s));
    while (!all_done(events)) {
        look();
        if (Clock::now() > until) {
            std::string late;
            for (unsigned rank = 0; rank < events.size(); ++rank)
                if (!events[rank].done())
                    late += (late.empty() ? "" : ", ") + name(rank);
            throw RankFailed(fmt::format("{} did not come within {:.3g} s from: {}", what,
                                         2 * patience_s, late));
        }
        auto lock = monitor.lock();
        static_cast<void>(monitor.wait_for(lock, between_looks, [] { return false; }));
    }
}

}  // namespace spillway::offload::detail
