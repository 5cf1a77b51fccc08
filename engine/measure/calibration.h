// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>

#include "cuda/device.h"
#include "engine/compute/compute_pool.h"
#include "engine/model/gpt2_config.h"
#include "engine/model/gpt2_step.h"

namespace spillway::engine {

/// Forward and backward of one step with everything resident, from the run's own shapes:
/// a model of one and one of a few layers gives the rest of the model and a layer; few sequences
/// stand for the batch. `parameter_bytes`: what the run has on the device for weights and
/// gradients. Takes a second or two, allocates no more on the device than the run will, and frees
/// it.
[[nodiscard]] PassTimes calibrate_pass(cuda::Device& device, cuda::Stream& compute,
                                       ComputePool& pool, const Gpt2Config& config,
                                       const BatchShape& shape, std::size_t parameter_bytes);

/// What a second of the memory manager's work (updates, weights on their way) adds to passes of the
/// run's shapes that it runs beside, on a processor that does both: 1 if their times just added up,
/// and more where they wait for each other's threads and share caches. Measured with changes of
/// `memory_bytes` in place, which work through memory as an update does; passes beside them and
/// alone take turns, and the median counts. Takes about a second.
[[nodiscard]] double calibrate_sharing(cuda::Device& device, cuda::Stream& compute,
                                       ComputePool& pool, const Gpt2Config& config,
                                       const BatchShape& shape, std::size_t parameter_bytes,
                                       std::size_t memory_bytes);

/// One step of a tiny model, so that what libraries allocate once is there before it is measured.
void warm_up(cuda::Device& device, cuda::Stream& compute, ComputePool& pool);

/// The time of `layers` layers and of `sequences` sequences from those of one and of `few_layers`
/// and of `timed_sequences`. Further layers that seem to cost nothing (noise) count as nothing.
[[nodiscard]] double extrapolate_pass(double one_layer_s, double few_layers_s,
                                      std::uint32_t few_layers, std::uint32_t layers,
                                      std::uint32_t timed_sequences, std::uint32_t sequences);

}  // namespace spillway::engine
