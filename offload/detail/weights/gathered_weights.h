// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "offload/detail/weights/gather_schedule.h"
#include "offload/detail/weights/group_context.h"
#include "offload/detail/weights/share_gather.h"

namespace spillway::offload::detail {

/// The weights of a DeviceGroup: each rank's share goes up its own link, and the ranks gather units
/// from the shares of all, ahead of use by as many units as there are slots. All ranks have the
/// same slots and use them alike, so one schedule serves them all.
class GatheredWeights {
  public:
    explicit GatheredWeights(const GroupContext& context);

    /// Announces to the engine what it has to bring.
    void begin_pass(std::span<const std::size_t> uses, WeightKind kind);
    /// Brings all units of the pass, and returns when they have come; on a thread of its own.
    void bring_all();
    /// What ranks still wait for fails. The thread of bring_all() has ended.
    void leave() noexcept;

    // ---- from the thread of `rank`
    [[nodiscard]] const float* acquire(unsigned rank, std::size_t unit);
    void release(unsigned rank, std::size_t unit);
    /// Throws std::logic_error where some of the pass were not acquired.
    void require_all_acquired(unsigned rank) const;

  private:
    struct Use : GatherUse {
        std::uint64_t earlier = 0;  ///< uses of the slot before this one, in all passes
    };
    /// A slot on one device; guarded by the monitor.
    struct Place {
        std::byte* data = nullptr;
        std::uint64_t released = 0;  ///< uses
        cuda::Event last_use;
        cuda::Event filled;
        StallCause brought_by = StallCause::link;  ///< what bringing it took longest for
    };
    /// The share of a unit that stays through a pass; null data: it does not.
    struct KeptShare {
        std::byte* data = nullptr;
        cuda::Event came;
        cuda::Event gathered;
    };
    struct Rank {
        std::vector<cuda::DeviceBuffer> memory;
        std::vector<Place> places;    ///< by slot
        std::vector<KeptShare> kept;  ///< by unit; of bring_all() alone
        std::unique_ptr<cuda::Stream> up, gather;
        std::unique_ptr<StreamStall> stall;
        std::size_t acquired = 0;  ///< uses of the pass; guarded by the monitor
    };

    void add_rank(unsigned rank);
    void bring(const Use& use);
    void note_brought(const Use& use, StallCause by);
    void look_at_gathers();
    /// Returns the event of the last of so many uses.
    [[nodiscard]] cuda::Event wait_released(const Place& place, std::uint64_t uses);
    /// Queues the way up of a new share, if `host` is one, behind the last use of its place;
    /// returns where the gather is to find it.
    [[nodiscard]] GatherPart fill(unsigned rank, const Use& use, const float* host);
    void gather(const Use& use, std::span<const GatherPart> parts);
    [[nodiscard]] TraceNumbers numbers_of(std::size_t unit) const noexcept;

    GroupContext context_;
    std::vector<std::uint64_t> slot_uses_;  ///< by slot, in all passes
    std::vector<Rank> ranks_;
    std::unique_ptr<ShareGather> gather_;
    std::deque<std::vector<cuda::Event>> gathers_;  ///< not known to be over, each by rank; of
                                                    ///< bring_all() alone
    std::vector<Use> uses_;                         ///< of the pass; fixed while it runs
    std::size_t brought_ = 0;                       ///< uses; guarded by the monitor
};

}  // namespace spillway::offload::detail
