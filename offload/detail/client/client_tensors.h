// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <vector>

#include "offload/tensor_plan.h"

namespace spillway::offload::detail {

/// What the engine must know of a tensor whose values the client holds.
struct ClientTensor {
    ParameterType type = ParameterType::fp32;
    void* data = nullptr;
    std::uint32_t group = 0;
    std::uint64_t steps = 0;     ///< updates it has seen
    bool fresh_residue = false;  ///< its residues count as zero until an update writes them
};

using ClientTensors = std::vector<ClientTensor>;

}  // namespace spillway::offload::detail
