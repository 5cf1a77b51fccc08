// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "cuda/device.h"
#include "offload/activations.h"
#include "offload/detail/activations/activation_spill.h"
#include "offload/detail/placement/copied_arena.h"
#include "offload/detail/threads/engine_thread.h"
#include "offload/detail/threads/stall_clock.h"
#include "offload/detail/trace/engine_trace.h"

namespace spillway::offload::detail {

/// Moves layers' inputs in the order in which it is told of them, each in pieces: device -> staging
/// -> drive, and drive -> staging -> device with reads running ahead by as many pieces as there
/// are; or between the device and a place in host memory.
class ActivationMover final : public ActivationStore {
  public:
    struct Context {
        Monitor& monitor;
        const ActivationLayout& layout;
        cuda::Device& device;
        cuda::Stream& compute;
        StallTotals& stalls;
        EngineTrace trace = {};
    };
    /// Of `spill`, which has its files.
    ActivationMover(const Context& context, ActivationSpill spill, MemoryLedger& ledger);
    ~ActivationMover() override;

    void save(std::size_t layer, std::size_t micro_batch, const std::byte* at) override;
    void wait_saved(std::size_t layer, std::size_t micro_batch) override;
    void fetch(std::size_t layer, std::size_t micro_batch, std::byte* to) override;
    void wait_fetched(std::size_t layer, std::size_t micro_batch) override;
    void close() noexcept override;

  private:
    enum class Kind { save, fetch };
    struct Job {
        Kind kind = Kind::save;
        std::size_t layer = 0;
        std::size_t micro_batch = 0;
        std::byte* place = nullptr;  ///< on the device
        cuda::Event ready;           ///< what it waits for there
    };
    /// Of an input whose last job is done as far as the host has to do with it.
    struct Input {
        std::optional<Kind> done;
        cuda::Event event;
    };
    /// A piece on its way between drive and device.
    struct Flight {
        Job job;
        std::size_t number = 0;  ///< of the piece
        std::byte* staging = nullptr;
        PendingIo io = {};
        cuda::Event copied = {};
    };
    /// An input that is read from its drive.
    struct Fetching {
        Job job;
        std::size_t next = 0;  ///< piece to be read
    };

    void run();
    void push(Job job);
    [[nodiscard]] std::optional<Job> take_fetch_from_drive();
    void wait_done(std::size_t layer, std::size_t micro_batch, Kind kind, StallCause cause);
    void note_done(const Job& job, cuda::Event event);

    void move(const Job& job);
    void save_to_host(const Job& job);
    void fetch_from_host(const Job& job);
    void save_to_drive(const Job& job);
    void begin_fetch(Job job);
    [[nodiscard]] bool read_ahead();
    void finish_read();
    void finish_write();
    void wait_for(PendingIo& io, TraceCause cause);
    void reclaim();
    [[nodiscard]] std::byte* take_staging();
    enum class Way { to_host, to_device };
    void copy(Way way, const Job& job, std::byte* host, std::size_t at_bytes, std::size_t bytes);

    [[nodiscard]] bool on_drive(std::size_t layer) const noexcept {
        return context_.layout.tiers[layer] == ActivationTier::nvme;
    }
    [[nodiscard]] Input& input(std::size_t layer, std::size_t micro_batch) noexcept {
        return inputs_[layer * context_.layout.micro_batches + micro_batch];
    }
    [[nodiscard]] std::byte* host_place(const Job& job) const noexcept;
    /// Of a piece as it is on the device, where none has padding.
    [[nodiscard]] std::size_t device_bytes(std::size_t number) const noexcept;

    Context context_;
    CopiedArena resident_;
    CopiedArena staging_;
    std::vector<std::size_t> host_layers_before_;  ///< by layer: those before it in host memory
    std::unique_ptr<cuda::Stream> copy_stream_;
    StreamStall stall_;

    // Guarded by the monitor.
    std::deque<Job> jobs_;
    std::vector<Input> inputs_;

    // Touched by the mover's thread only.
    ActivationSpill spill_;
    std::vector<std::byte*> free_staging_;
    std::deque<Flight> writing_;
    std::deque<Flight> reading_;
    std::deque<Flight> landing_;  ///< read, and being copied to the device
    std::optional<Fetching> fetching_;

    EngineThread thread_;
};

}  // namespace spillway::offload::detail
