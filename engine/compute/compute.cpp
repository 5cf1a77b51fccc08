// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/compute/compute.h"

#include "engine/compute/cuda_compute.h"
#include "engine/compute/host_compute.h"

namespace spillway::engine {

std::unique_ptr<Compute> make_compute(cuda::Stream& stream, ComputePool& pool) {
    if (auto* const kernels = stream.kernels())
        return make_cuda_compute(*kernels);
    return make_host_compute(stream, pool);
}

}  // namespace spillway::engine
