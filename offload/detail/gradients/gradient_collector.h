// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "cpu_optim/isa.h"
#include "cuda/device.h"
#include "offload/detail/gradients/gradient_scans.h"
#include "offload/detail/gradients/gradient_spill.h"
#include "offload/detail/placement/copied_arena.h"
#include "offload/detail/placement/host_planes.h"
#include "offload/detail/threads/engine_thread.h"
#include "offload/detail/threads/monitor.h"
#include "offload/detail/threads/stall_clock.h"
#include "offload/detail/trace/engine_trace.h"
#include "offload/offload_engine.h"
#include "offload/plan.h"

namespace spillway::offload::detail {

/// Takes units' gradients off the device, adds up contributions in order, scans each chunk once it
/// is complete, and lets it wait in host memory, or spilled, or in a passing slot until the update
/// takes it. A thread of its own; acquire, release and finish come from the driving thread.
class GradientCollector {
  public:
    struct Context {
        Monitor& monitor;
        const ElementOrder& order;
        const std::vector<Unit>& units;
        const HostPlanes& planes;
        const OffloadPlan& plan;
        GradientSpill*
            spill;  ///< null: chunks without a resident place pass straight to the update
        cuda::Device& device;
        cuda::Stream& compute;
        StallTotals& stalls;
        cpu_optim::Isa isa;
        GradientNorms norms = GradientNorms::of_all;
        EngineTrace trace = {};
    };
    GradientCollector(const Context& context, MemoryLedger& ledger);
    ~GradientCollector();
    GradientCollector(const GradientCollector&) = delete;
    GradientCollector& operator=(const GradientCollector&) = delete;

    /// Forgets the former step. Nothing may still want its gradients.
    void begin_step();
    [[nodiscard]] float* acquire(std::size_t unit);
    void release(std::size_t unit);
    /// Blocks until every chunk is complete (and spilled).
    [[nodiscard]] GradientSummary finish();

    // ---- for the update's thread
    /// Whether the gradient of `chunk` of the step under way is complete.
    [[nodiscard]] bool is_complete(std::uint64_t chunk) const;
    /// Blocks until it is.
    void wait_complete(std::uint64_t chunk);
    /// The complete gradient in host memory, the update's to change, or null: it was spilled.
    [[nodiscard]] float* in_memory(std::uint64_t chunk) const;
    /// The update has read the gradient of `chunk`.
    void consumed(std::uint64_t chunk);

  private:
    struct UnitSlot {
        float* data = nullptr;
        std::optional<std::size_t> unit;
        bool free = true;
    };
    struct Job {
        std::size_t slot = 0;
        std::size_t unit = 0;
        cuda::Event ready;
    };
    struct HostSlot {
        float* data = nullptr;
        PendingIo spilling;
    };
    /// Progress of one chunk in the step under way; guarded by the monitor.
    struct ChunkProgress {
        std::uint64_t missing_elements = 0;
        bool complete = false;
        std::optional<std::size_t> host_slot;
    };

    void run();
    void take(const Job& job);
    void take_chunk(const Job& job, std::uint64_t chunk, ElementRange range);
    void take_tensor(const Job& job, TensorId tensor, ElementRange range, float* into);
    [[nodiscard]] float* place(std::uint64_t chunk);
    [[nodiscard]] std::size_t free_host_slot();
    void zero_padding(std::uint64_t chunk, float* gradient) const;
    void complete(std::uint64_t chunk, float* gradient);
    [[nodiscard]] ElementRange chunk_elements(std::uint64_t chunk) const noexcept;
    [[nodiscard]] std::string incomplete_tensors() const;

    Context context_;
    CopiedArena assembly_;
    CopiedArena contribution_;  ///< where a later contribution lands before it is added
    std::vector<cuda::DeviceBuffer> unit_memory_;
    std::unique_ptr<cuda::Stream> copy_stream_;
    StreamStall stall_;

    // Guarded by the monitor.
    std::vector<UnitSlot> unit_slots_;
    std::deque<Job> jobs_;
    bool busy_ = false;
    std::vector<ChunkProgress> progress_;
    std::uint64_t complete_chunks_ = 0;
    std::vector<std::size_t> free_host_slots_;

    // Written by the collector's thread; read after finish() has seen every chunk complete.
    std::vector<HostSlot> host_slots_;
    std::deque<std::size_t> spilling_slots_;
    std::vector<std::uint32_t> contributions_seen_;  ///< per tensor
    GradientScans scans_;

    EngineThread thread_;
};

}  // namespace spillway::offload::detail
