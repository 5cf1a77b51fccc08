// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "nvme/completion_signal.h"
#include "nvme/huge_page_arena.h"
#include "offload/detail/drives/drive_lanes.h"
#include "offload/detail/drives/tile_store.h"
#include "offload/detail/gradients/gradient_spill.h"
#include "offload/detail/placement/host_planes.h"
#include "offload/detail/state/committer.h"
#include "offload/detail/threads/engine_thread.h"
#include "offload/detail/threads/stall_clock.h"
#include "offload/detail/trace/engine_trace.h"
#include "offload/detail/update/chunk_board.h"
#include "offload/detail/update/chunk_update.h"
#include "offload/detail/update/update_staging.h"
#include "offload/detail/update/update_visits.h"
#include "offload/offload_engine.h"

namespace spillway::offload::detail {

/// Runs updates over all chunks: state of chunk k+1 is read, k goes through the fused pass, k-1 is
/// written back, all moving. An update of several passes comes to each chunk as often and changes
/// it the last time alone, so that every chunk is wholly the old or the new one at any moment.
/// Between updates it makes the commits asked for and has the first chunks' state read ahead
/// already. A thread of its own; public calls come from the driving thread.
class UpdatePipeline {
  public:
    struct Context {
        Monitor& monitor;
        ChunkBoard& board;
        TileStore& store;
        const HostPlanes& planes;
        const UpdateStaging& staging;
        const OffloadPlan& plan;
        const ElementOrder& order;
        GradientSpill* spill;  ///< null when no gradient waits on the drive
        Committer* committer;  ///< null when nothing is ever committed
        StallTotals& update_time;
        const nvme::CompletionSignal& io_ended;  ///< of the store's queues
        EngineTrace trace = {};
    };
    /// `chunk_order`: the order in which chunks are updated.
    UpdatePipeline(const Context& context, const std::vector<std::uint64_t>& chunk_order);
    ~UpdatePipeline();
    UpdatePipeline(const UpdatePipeline&) = delete;
    UpdatePipeline& operator=(const UpdatePipeline&) = delete;

    /// Starts reading ahead; the stored state must be there.
    void start();
    void begin_update(std::unique_ptr<ChunkUpdate> update, std::uint64_t version);
    void request_commit(CommitNote note, std::uint64_t version);
    /// Runs `edit` on the pipeline's thread with no I/O of its own under way: what was read ahead
    /// is forgotten, so `edit` may change what is stored. Returns when it is done.
    void edit(std::function<void()> edit);
    /// Blocks until no update (a commit may still run), or nothing at all, is under way.
    void wait_updated();
    void wait_idle();
    [[nodiscard]] bool wait_idle(std::chrono::milliseconds limit);

    [[nodiscard]] double wall_s() const noexcept {
        return static_cast<double>(wall_ns_.load()) * 1e-9;
    }

  private:
    struct Slot {
        std::size_t position = 0;  ///< in visits_
        std::size_t drive = 0;
        UpdateStaging::Slot memory;
        std::uint64_t chunk = 0;
        PendingIo reads;
        PendingIo gradient_read;
        bool gradient_asked = false;
        bool kept = false;  ///< measured, and waiting for a further pass or through it
        PendingIo writes;
        std::uint64_t version = 0;
        PerPlane<std::vector<std::uint64_t>> checksums;
    };
    struct Update {
        std::unique_ptr<ChunkUpdate> work;
        std::uint64_t version = 0;
    };
    /// Chunks that pass through slots, if several could be next.
    enum class Passing {
        in_order,      ///< gradients still come, and wait in few places for their turn
        as_they_come,  ///< all gradients are there: no drive waits for another
    };
    struct Commit {
        CommitNote note;
        std::uint64_t version = 0;
    };
    using Edit = std::function<void()>;
    using Command = std::variant<Update, Commit, Edit>;

    void run();
    std::optional<Command> next_command();
    void execute(const Update& update);
    void begin_reading();
    void read_ahead();
    void forget_read_ahead();
    [[nodiscard]] std::size_t drive_of(std::uint64_t chunk) const noexcept;
    void ask_for_gradients();
    [[nodiscard]] std::size_t visit(std::size_t position, Passing passing, const Update& update);
    [[nodiscard]] std::size_t visit_resident(std::size_t position, const Update& update);
    void keep_reading();
    [[nodiscard]] Passing passing(const Update& update) const;
    [[nodiscard]] std::size_t take_read(std::size_t position, Passing passing);
    [[nodiscard]] std::optional<std::size_t> find_read(std::size_t position, Passing passing) const;
    [[nodiscard]] std::size_t take_kept(std::uint64_t chunk);
    void wait_read(Slot& slot, const Update& update);
    void measure_read(std::size_t index, const ChunkVisit& visit, const Update& update);
    void update_read(std::size_t index, const Update& update);
    void run_measure(std::span<const ChunkPlanes> chunks, std::size_t pass, const Update& update);
    void run_update(std::span<const ChunkPlanes> chunks, const Update& update,
                    const ChunkUpdate::Updated& updated);
    [[nodiscard]] ChunkPlanes planes_of(std::uint64_t chunk) const;
    [[nodiscard]] ChunkPlanes planes_in(Slot& slot) const;
    void write_back(std::size_t index);
    void retire_write(std::size_t index);
    void retire_finished_writes();
    void free_slot(std::size_t index);
    /// Nothing of it is on the drive: it needs no slot.
    [[nodiscard]] bool is_resident(std::uint64_t chunk) const noexcept;
    [[nodiscard]] bool gradient_spilled(std::uint64_t chunk) const noexcept {
        return context_.spill != nullptr && context_.planes.gradient(chunk) == nullptr;
    }
    [[nodiscard]] bool staged(Plane plane, std::uint64_t chunk) const noexcept {
        return context_.planes.plane(plane, chunk) == nullptr;
    }
    /// Weights that the engine owns, in part or whole on the drive.
    [[nodiscard]] bool weights_staged(std::uint64_t chunk) const noexcept {
        return context_.plan.planes.contains(Plane::weight) &&
               (staged(Plane::weight, chunk) || staged(Plane::residue, chunk));
    }
    [[nodiscard]] TileRange tiles_of(std::uint64_t chunk) const noexcept {
        return context_.plan.chunk_range(chunk, context_.order.tiles());
    }

    Context context_;
    std::vector<ChunkVisit> visits_;  ///< of every update

    // Guarded by the monitor.
    std::deque<Command> commands_;
    bool started_ = false;
    bool busy_ = false;
    bool updating_ = false;

    // Touched by the pipeline's thread only.
    std::vector<Slot> slots_;
    std::vector<std::size_t> free_slots_;
    std::vector<std::size_t> read_slots_;  ///< reads under way or over, oldest first
    std::vector<std::size_t> kept_slots_;  ///< between their chunks' passes
    std::vector<std::size_t> writing_slots_;
    DriveLanes lanes_;                  ///< of all slots but those for kept chunks
    std::vector<std::size_t> passing_;  ///< positions of visits that read into a slot: lanes' items

    std::atomic<std::uint64_t> wall_ns_{0};
    EngineThread thread_;
};

}  // namespace spillway::offload::detail
