// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "offload/detail/client/client_tensors.h"
#include "offload/detail/placement/host_planes.h"
#include "offload/detail/state/committer.h"
#include "offload/detail/threads/update_threads.h"
#include "offload/plan.h"

namespace spillway::offload::detail {

/// The weights in the client's memory as a commit holds them: split masters, in the weight and the
/// residue plane, whatever their type. So a commit reads the same whoever made it.
class ClientWeightImage final : public ClientWeights {
  public:
    struct Context {
        const ElementOrder& order;
        const HostPlanes& planes;
        const OffloadPlan& plan;
        UpdateThreads& threads;
        const ClientTensors& tensors;
        std::span<std::byte> work;  ///< a weight and a residue plane of a chunk
    };
    explicit ClientWeightImage(const Context& context) : context_(context) {}

    std::uint64_t write(TileStore& store) override;
    /// The other way: every tensor as the newest commit has it, verified.
    void load(TileStore& store);

  private:
    struct Halves {
        TileRange tiles;
        std::byte* weight;
        std::byte* residue;
    };
    [[nodiscard]] Halves halves_of(std::uint64_t chunk) const;
    void read_residues(TileStore& store, std::uint64_t chunk, const Halves& halves);
    void split_tile(const Halves& halves, std::uint64_t index) const;
    void join_tile(const Halves& halves, std::uint64_t index) const;

    Context context_;
};

}  // namespace spillway::offload::detail
