// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "offload/average_rule.h"
#include "offload/detail/client/client_tensors.h"
#include "offload/detail/drives/tile_store.h"
#include "offload/detail/gradients/step_gradients.h"
#include "offload/detail/state/committer.h"
#include "offload/detail/threads/update_threads.h"
#include "offload/detail/update/chunk_update.h"
#include "offload/detail/update/update_rules.h"
#include "offload/plan.h"

namespace spillway::offload::detail {

/// One update of weights in the client's memory by gradients in the client's memory. Tensors
/// without a gradient stay as they are, and so does their count of steps.
class ClientUpdate final : public ChunkUpdate {
  public:
    struct Context {
        const TileStore& store;
        const OffloadPlan& plan;
        Committer* committer;  ///< null when nothing is ever committed
        UpdateThreads& threads;
        ClientTensors& tensors;
        std::uint64_t rounding_seed;         ///< of lossy state
        UpdateMemory& memory;                ///< of an optimizer of whole tensors
        std::optional<AverageRule> average;  ///< of the weights, if the plan has a plane for it
    };
    /// `groups`: the hyper-parameters of each group; throws std::invalid_argument as
    /// make_coefficients().
    ClientUpdate(const Context& context, std::shared_ptr<StepGradients> gradients,
                 const HyperGroups& groups, double gradient_scale);

    void begin() override;
    [[nodiscard]] ChunkGradients gradients(std::uint64_t chunk) override;
    void wait_for_gradients(std::uint64_t chunk) override;
    void measure(std::span<const ChunkPlanes> chunks, std::size_t pass) override;
    void update(std::span<const ChunkPlanes> chunks, const Updated& updated) override;
    void end() override;

  private:
    void settle(std::span<const ChunkPlanes> chunks, std::size_t pass);
    [[nodiscard]] ElementOrder::TensorSpan tensors_of(std::uint64_t chunk) const;
    template <typename Visit>
    void for_each_part(const ChunkPlanes& chunk, std::uint64_t index, const Visit& visit) const;
    [[nodiscard]] cpu_optim::ElementwiseRun run_of(TensorId tensor, const TilePart& part,
                                                   std::size_t elements) const;
    void update_tile(const ChunkPlanes& chunk, std::uint64_t index) const;
    void average(TensorId tensor, const TilePart& part, const cpu_optim::ElementwiseRun& run) const;

    Context context_;
    std::shared_ptr<StepGradients> gradients_;
    UpdateRules rules_;
};

}  // namespace spillway::offload::detail
