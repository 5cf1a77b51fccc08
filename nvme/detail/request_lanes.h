// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "nvme/detail/request_state.h"

namespace spillway::nvme::detail {

/// Requests that are not yet wholly cut into operations, in the order in which their operations
/// start: demand reads before prefetch reads before writes and flushes, each lane in order of
/// arrival. A lane that could start something and was passed over `most_overtakes` times has the
/// next turn, so that a stream of demand reads slows write-back down but cannot stop it. Not
/// thread-safe.
class RequestLanes {
  public:
    static constexpr unsigned most_overtakes = 4;

    /// Most operations under way, of reads and of the others; at least 1 each.
    RequestLanes(std::size_t most_reads, std::size_t most_writes) noexcept
        : most_reads_(most_reads), most_writes_(most_writes) {}

    /// Leaves `request` as it is where memory runs out.
    void push(std::shared_ptr<RequestState>&& request);
    /// The request of which one operation is to be cut now, which counts as under way until
    /// operation_ended(). Empty when nothing waits or the limits are reached.
    [[nodiscard]] std::shared_ptr<RequestState> next();
    void operation_ended(IoOperation operation) noexcept;
    /// Forgets the requests of which nothing is left to cut.
    void drop_cut();
    [[nodiscard]] bool empty() const noexcept;
    /// Everything that waits, in no order of interest; nothing waits afterwards.
    [[nodiscard]] std::vector<std::shared_ptr<RequestState>> take_all();

  private:
    static constexpr std::size_t lane_count = 3;
    static constexpr std::size_t write_lane = lane_count - 1;
    struct Lane {
        std::deque<std::shared_ptr<RequestState>> waiting;
        unsigned overtaken = 0;  ///< operations of higher lanes started while this one could have
    };

    [[nodiscard]] bool can_start(std::size_t lane) const noexcept;
    [[nodiscard]] std::size_t choose() const noexcept;

    std::size_t most_reads_;
    std::size_t most_writes_;
    std::size_t reads_ = 0;   ///< operations under way
    std::size_t writes_ = 0;  ///< the same, flushes included
    std::array<Lane, lane_count> lanes_;
};

}  // namespace spillway::nvme::detail
