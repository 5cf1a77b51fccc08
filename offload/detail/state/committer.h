// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "offload/commit_log.h"
#include "offload/detail/drives/tile_store.h"
#include "offload/detail/placement/host_planes.h"
#include "offload/detail/threads/update_threads.h"
#include "offload/offload_engine.h"
#include "offload/state_folder.h"
#include "offload/step_trace.h"

namespace spillway::offload::detail {

/// Weights that live in the client's memory and are written by commits alone.
class ClientWeights {
  public:
    ClientWeights() = default;
    virtual ~ClientWeights() = default;
    ClientWeights(const ClientWeights&) = delete;
    ClientWeights& operator=(const ClientWeights&) = delete;

    /// Writes their weight planes, and the residues that no update writes, to the store.
    /// Returns the bytes written.
    virtual std::uint64_t write(TileStore& store) = 0;
};

/// Makes commits: writes what rests in host memory to the copies that the last commit does not
/// name, flushes, then has the log name the whole. Used by one thread at a time.
class Committer {
  public:
    struct Context {
        CommitLog& log;
        StateFolder& folder;
        TileStore& store;
        const HostPlanes& planes;
        const OffloadPlan& plan;
        UpdateThreads& threads;
        Durability durability;
        const std::vector<std::uint64_t>& tensor_steps;  ///< updates that each tensor has seen
        const std::vector<float>* factors;               ///< null: none are kept
        ClientWeights* client_weights = nullptr;         ///< null: the store holds the weights
        TraceRow trace = {};
    };
    explicit Committer(const Context& context);

    /// Takes up where a recovered commit stands.
    void load(const CommitTable& table);
    /// Before the first overwrite of an update: without two copies the newest record becomes dirty.
    void before_update();
    void after_update() noexcept { resident_changed_ = true; }
    void commit(const CommitNote& note, std::uint64_t update);
    /// Nothing in host memory differs from the drive (after initialisation wrote both).
    void mark_written() noexcept { resident_changed_ = false; }

    /// Whether a commit writes planes that updates stream too.
    [[nodiscard]] bool rewrites_planes() const noexcept {
        return context_.client_weights != nullptr;
    }
    [[nodiscard]] std::uint64_t commit_bytes() const noexcept { return commit_bytes_.load(); }
    [[nodiscard]] std::uint64_t commits() const noexcept { return commits_.load(); }
    /// What commits took, and of it: planes in memory being written, flushes of data and table.
    [[nodiscard]] double wall_s() const noexcept { return seconds(wall_ns_); }
    [[nodiscard]] double write_s() const noexcept { return seconds(write_ns_); }
    [[nodiscard]] double flush_s() const noexcept { return seconds(flush_ns_); }

  private:
    [[nodiscard]] static double seconds(const std::atomic<std::uint64_t>& ns) noexcept {
        return static_cast<double>(ns.load()) * 1e-9;
    }
    void write_resident_planes();
    void publish(const CommitNote& note, std::uint64_t update);
    PendingIo write_plane(Plane plane, std::uint64_t chunk, std::vector<std::uint64_t>& checksums);

    Context context_;
    std::uint64_t last_sequence_ = 0;  ///< 0: none yet
    bool resident_changed_ = true;
    bool dirty_ = false;
    std::atomic<std::uint64_t> commit_bytes_{0};
    std::atomic<std::uint64_t> commits_{0};
    std::atomic<std::uint64_t> wall_ns_{0};
    std::atomic<std::uint64_t> write_ns_{0};
    std::atomic<std::uint64_t> flush_ns_{0};
};

}  // namespace spillway::offload::detail
