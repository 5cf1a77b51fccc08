// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "offload/detail/placement/unit_share.h"
#include "offload/detail/threads/monitor.h"
#include "offload/detail/trace/group_trace.h"
#include "offload/device_group.h"

namespace spillway::offload::detail {

/// What the parts of a DeviceGroup share.
struct GroupContext {
    Monitor& monitor;
    OffloadEngine& engine;
    const GroupPlan& plan;
    const std::vector<UnitShare>& units;
    const std::vector<GroupMember>& members;  ///< by rank
    double patience_s;
    static constexpr std::chrono::milliseconds between_looks{1};

    [[nodiscard]] DeviceRecord& record(unsigned rank) const { return engine.device_record(rank); }
    /// Of the compute stream of `rank`, whose waits come one behind the other.
    [[nodiscard]] std::unique_ptr<StreamStall> stall_of(unsigned rank) const;
    /// "rank 1 of 2 (sim:64MiB)".
    [[nodiscard]] std::string name(unsigned rank) const;
    [[nodiscard]] RankFailed failed(unsigned rank, std::string_view why) const;

    /// Blocks the host until all of `events`, one a rank, have happened, in whatever order: behind
    /// one that failed the others may wait for ever. Calls `look` now and then. Throws RankFailed
    /// for a failure before one of them, and when patience ends twice over (a device that waits for
    /// another one knows more, and says so first); the monitor's poison; what `look` throws.
    void wait_for_all(
        std::string_view what, std::span<const cuda::Event> events,
        const std::function<void()>& look = [] {}) const;
    /// Whether all have happened. Throws RankFailed for a failure before one that has.
    [[nodiscard]] bool all_done(std::span<const cuda::Event> events) const;
};

}  // namespace spillway::offload::detail
