// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "offload/element_order.h"
#include "offload/plan.h"
#include "offload/plane.h"

namespace spillway::offload {

/// Where the weights of a tensor come from, for the planes that its chunks need.
enum class ParameterType : std::uint8_t {
    fp32,  ///< its own master
    bf16,  ///< the engine keeps the residue that makes it an exact fp32 master
};
[[nodiscard]] constexpr std::size_t parameter_bytes(ParameterType type) noexcept {
    return type == ParameterType::fp32 ? 4 : 2;
}

enum class Commits { possible, never };
/// Whether an average of the weights is kept beside the state.
enum class WeightAverages { kept, none };

struct TensorPlanRequest {
    std::size_t state_planes = 2;  ///< values kept per parameter
    std::size_t passes = 1;        ///< as in PlanRequest
    SecondMoments second_moments = SecondMoments::planes;
    cpu_optim::StateFormat state = cpu_optim::StateFormat::fp32;
    WeightAverages averages = WeightAverages::none;
    std::size_t host_bytes = 0;
    NvmeTier nvme = NvmeTier::absent;
    std::size_t drives = 1;  ///< of the NVMe tier
    Commits commits = Commits::never;
    std::size_t chunk_bytes = 0;  ///< as in PlanRequest
    Windows windows = {};         ///< of which the weights' is not used: they are there
};

/// A plan for weights that stay in the client's memory: state planes, residues and averages over
/// host memory and the drive, chunk by chunk, the first chunks in memory as far as it goes. Each
/// costs the same per byte and step, so which ones stay makes no difference.
struct TensorPlan {
    OffloadPlan update;
    PlaneSet stored;             ///< what the extents hold: with commits, the weights too
    std::size_t work_bytes = 0;  ///< of the buffer for commits and for access to single tensors
};

/// `types`: per tensor of the order. Throws PlanRefused, or std::invalid_argument on a chunk size
/// that is no multiple of 64 KiB, on windows that check_windows() refuses and on more than three
/// passes.
[[nodiscard]] TensorPlan make_tensor_plan(const ElementOrder& order,
                                          std::span<const ParameterType> types,
                                          const TensorPlanRequest& request);

}  // namespace spillway::offload
