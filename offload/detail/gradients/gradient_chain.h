// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "offload/detail/weights/group_context.h"

namespace spillway::offload::detail {

/// The gradients of a DeviceGroup: from rank to rank on the devices, each adding its sequences to
/// what the former ones left; then every rank takes its share of the whole to the host over its own
/// link. The host waits for nothing but that the rank before has queued its part.
class GradientChain {
  public:
    explicit GradientChain(const GroupContext& context);

    void begin_pass();
    /// Hands what the last rank leaves to the engine, until all ranks have ended.
    void hand_over_all();

    // ---- from the thread of `rank`
    [[nodiscard]] float* acquire(unsigned rank, std::size_t unit);
    void release(unsigned rank, std::size_t unit);
    /// It makes no more calls in this pass.
    void ended(unsigned rank);

  private:
    /// Guarded by the monitor, but for the data.
    struct Slot {
        float* data = nullptr;
        std::optional<std::size_t> unit;  ///< none: free
        bool held = false;                ///< by its own rank
        std::vector<cuda::Event> read;    ///< of whoever took it over last
    };
    /// A rank's sum over its own and all earlier sequences.
    struct Sum {
        std::size_t slot = 0;
        std::size_t unit = 0;
        cuda::Event ready;
    };
    struct Rank {
        std::vector<cuda::DeviceBuffer> memory;
        std::vector<Slot> slots;
        std::deque<Sum> sums;  ///< for the next rank, or the host; guarded by the monitor
        float* landing = nullptr;
        std::unique_ptr<cuda::Stream> down;
        std::unique_ptr<StreamStall> stall;
        bool ended = false;  ///< guarded by the monitor
    };

    /// What the rank before `rank` left of the unit, waited for.
    [[nodiscard]] Sum former_sum(unsigned rank, std::size_t unit);
    void take_over(unsigned rank, const Sum& sum, float* to);
    void hand_over(const Sum& sum);
    /// Queues the copy of the share of `rank`; returns when it is there.
    [[nodiscard]] cuda::Event bring_share(unsigned rank, const Sum& sum, float* host);
    void give_back(unsigned rank, std::size_t slot, std::vector<cuda::Event> read);
    [[nodiscard]] unsigned last() const noexcept {
        return static_cast<unsigned>(ranks_.size()) - 1;
    }

    GroupContext context_;
    std::vector<Rank> ranks_;
};

}  // namespace spillway::offload::detail
