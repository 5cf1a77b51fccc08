// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cpu_optim/weight_average.h"
#include "offload/detail/drives/tile_store.h"
#include "offload/detail/gradients/gradient_collector.h"
#include "offload/detail/gradients/gradient_spill.h"
#include "offload/detail/state/committer.h"
#include "offload/detail/threads/update_threads.h"
#include "offload/detail/update/chunk_update.h"
#include "offload/detail/update/update_rules.h"

namespace spillway::offload::detail {

/// One update of weights that the engine owns, with gradients that its collector took in: tile by
/// tile while a tile is in cache, verify checksums, clamp, scale, optimizer, new weight, new
/// checksums.
class TrainingUpdate final : public ChunkUpdate {
  public:
    struct Context {
        const TileStore& store;
        GradientCollector& gradients;
        const GradientSpill* spill;  ///< null when gradients pass straight on
        Committer& committer;
        UpdateThreads& threads;
        std::vector<std::uint64_t>& tensor_steps;
        std::uint64_t rounding_seed;         ///< of lossy state
        std::optional<float> most_gradient;  ///< as UpdateStep's
        /// Of the new weights; none: the average stays as it is.
        std::optional<cpu_optim::AverageCoefficients> average;
    };
    TrainingUpdate(const Context& context, UpdateRules rules);

    void begin() override;
    [[nodiscard]] ChunkGradients gradients(std::uint64_t chunk) override;
    void wait_for_gradients(std::uint64_t chunk) override;
    /// Throws IntegrityError.
    void measure(std::span<const ChunkPlanes> chunks, std::size_t pass) override;
    /// Throws IntegrityError, or std::runtime_error naming a tensor whose new weight has no finite
    /// bf16 half.
    void update(std::span<const ChunkPlanes> chunks, const Updated& updated) override;
    void end() override;

  private:
    void settle(std::span<const ChunkPlanes> chunks, std::size_t pass);
    [[nodiscard]] std::vector<float*> gradients_of(std::span<const ChunkPlanes> chunks) const;
    template <typename Visit>
    void for_each_part(const ChunkPlanes& chunk, std::uint64_t index, const float* gradient,
                       const Visit& visit) const;
    void verify(const ChunkPlanes& chunk, std::uint64_t index, const float* gradient) const;
    void clamp(float* gradient) const;
    void average(const ChunkPlanes& chunk, std::uint64_t index) const;
    void measure_tile(MeasuringPass at, const ChunkPlanes& chunk, std::uint64_t index,
                      float* gradient);
    void update_tile(const ChunkPlanes& chunk, std::uint64_t index, float* gradient) const;

    Context context_;
    UpdateRules rules_;
};

}  // namespace spillway::offload::detail
