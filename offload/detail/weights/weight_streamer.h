// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "cpu_optim/isa.h"
#include "cuda/device.h"
#include "offload/detail/drives/tile_store.h"
#include "offload/detail/placement/copied_arena.h"
#include "offload/detail/placement/host_planes.h"
#include "offload/detail/threads/engine_thread.h"
#include "offload/detail/threads/stall_clock.h"
#include "offload/detail/trace/engine_trace.h"
#include "offload/detail/update/chunk_board.h"
#include "offload/plan.h"

namespace spillway::offload::detail {

/// Brings units' weights to the device ahead of use, in the announced order: drive -> staging ->
/// device
/// -> fp32, in parts of a chunk, all moving at once. Averages, which are fp32, go the same way. A
/// unit stays on the device while its slot is not needed for one used sooner and its version is the
/// one asked for. A thread of its own; the public calls come from the driving thread.
class WeightStreamer {
  public:
    struct Context {
        Monitor& monitor;
        ChunkBoard& board;
        TileStore& store;
        const HostPlanes& planes;
        const OffloadPlan& plan;
        cuda::Device& device;
        cuda::Stream& compute;
        StallTotals& stalls;
        const StallTotals&
            update_time;  ///< what the update spends its time on, to name what a version waits for
        cpu_optim::Isa isa;
        EngineTrace trace = {};
    };
    WeightStreamer(const Context& context, std::vector<TileRange> unit_tiles, MemoryLedger& ledger);
    /// Stops and drains.
    ~WeightStreamer();
    WeightStreamer(const WeightStreamer&) = delete;
    WeightStreamer& operator=(const WeightStreamer&) = delete;

    /// Averages of `version` must be stored already; newer weights are waited for chunk by chunk.
    void begin_pass(std::vector<std::size_t> uses, std::uint64_t version, WeightKind kind);
    /// The unit's first whole tile, as fp32 on the device.
    [[nodiscard]] const float* acquire(std::size_t unit);
    void release(std::size_t unit);
    /// What filling the unit that was acquired last mostly waited for; as acquire(), from one
    /// thread.
    [[nodiscard]] StallCause kept_by() const noexcept { return kept_by_; }

  private:
    struct Slot {
        std::size_t slot_class = 0;
        std::byte* data = nullptr;
        std::optional<std::size_t> unit;
        std::uint64_t version = 0;
        WeightKind kind = WeightKind::newest;
        std::size_t open_uses = 0;  ///< assigned and not yet released
        bool filled = false;
        StallCause fill_cause = StallCause::link;  ///< what filling mostly waited for
        cuda::Event filled_event;
        cuda::Event released_event;
    };
    struct Use {
        std::size_t unit = 0;
        std::optional<std::size_t> slot;
    };
    /// The unit being filled.
    struct Filling {
        std::size_t slot = 0;
        PlaneSet planes;
        std::uint64_t next_tile = 0;
        std::array<double, stall_causes> waited_s{};
    };
    /// A chunk's part of a unit on its way.
    struct Part {
        std::size_t slot = 0;
        std::uint64_t chunk = 0;
        PlaneSet planes;
        TileRange tiles;
        std::optional<std::size_t> buffer;
        PendingIo io;
        bool last = false;
    };
    struct ReturningBuffer {
        std::size_t buffer = 0;
        cuda::Event copied;
    };

    void run();
    void wait_for_version(Monitor::Lock& lock);
    bool issue_next();
    bool assign_next_use(const Monitor::Lock& lock);
    [[nodiscard]] std::optional<std::size_t> choose_slot(std::size_t unit) const;
    [[nodiscard]] bool can_progress(const Monitor::Lock& lock);
    [[nodiscard]] bool needs_buffer(PlaneSet planes, std::uint64_t chunk) const noexcept;
    /// It has the weights that the pass asks for.
    [[nodiscard]] bool has_wanted(const Slot& slot) const noexcept {
        return slot.unit && slot.version == version_ && slot.kind == kind_;
    }
    [[nodiscard]] std::uint64_t chunk_of(std::uint64_t tile) const noexcept {
        return tile / context_.plan.chunk_tiles;
    }
    void start_reads(Part& part);
    void finish_front_part();
    void verify(const Part& part);
    void transfer(const Part& part);
    void fill_here(const Part& part, std::byte* to) const;
    void complete_slot(const Part& part);
    void reclaim_buffers();
    [[nodiscard]] std::byte* source(Plane plane, const Part& part) const;
    [[nodiscard]] std::byte* staging(std::size_t buffer, Plane plane) const noexcept;

    Context context_;
    std::vector<TileRange> unit_tiles_;
    std::vector<std::size_t> class_of_unit_;
    std::vector<cuda::DeviceBuffer> slot_memory_;
    CopiedArena staging_;
    std::unique_ptr<cuda::Stream> copy_stream_;
    std::unique_ptr<cuda::Stream> join_stream_;
    StreamStall stall_;
    StallCause kept_by_ = StallCause::cpu;

    // Guarded by the monitor.
    std::vector<Slot> slots_;
    std::vector<Use> uses_;
    std::uint64_t version_ = 0;
    WeightKind kind_ = WeightKind::newest;
    std::size_t assigned_ = 0;  ///< uses_[0, assigned_) have a slot
    std::size_t acquired_ = 0;

    // Touched by the prefetch thread only.
    std::optional<Filling> filling_;
    std::deque<Part> parts_;
    std::vector<std::size_t> free_buffers_;
    std::deque<ReturningBuffer> returning_;

    EngineThread thread_;
};

}  // namespace spillway::offload::detail
