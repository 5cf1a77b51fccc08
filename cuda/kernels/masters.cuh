// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include "cuda/kernels/optimizer.cuh"

extern "C" __global__ void spillway_join_master(spillway::cuda::MasterJoin p) {
    using namespace spillway::cuda;
    for (std::size_t i = first_element(); i < p.elements; i += element_stride())
        p.master[i] = spillway::cpu_optim::join({p.weight[i], p.residue[i]});
}

extern "C" __global__ void spillway_split_master(spillway::cuda::MasterSplit p) {
    using namespace spillway::cuda;
    unsigned long long counted = 0;
    for (std::size_t i = first_element(); i < p.elements; i += element_stride()) {
        const float master = p.master[i];
        const spillway::cpu_optim::SplitWeight halves = spillway::cpu_optim::split(master);
        p.weight[i] = halves.hi;
        p.residue[i] = halves.lo;
        counted += spillway::cpu_optim::has_finite_hi(master) ? 0u : 1u;
    }
    if (counted != 0)
        atomicAdd(p.counted, counted);
}

/// A block reads its tile whole, into registers, before it writes over it.
extern "C" __global__ void __launch_bounds__(spillway::cuda::TilesJoin::threads)
    spillway_join_tiles(spillway::cuda::TilesJoin p) {
    using spillway::cuda::TilesJoin;
    constexpr unsigned each = TilesJoin::tile_elements / TilesJoin::threads;
    float* const tile = p.data + std::size_t{blockIdx.x} * TilesJoin::tile_elements;
    const auto* const weight = reinterpret_cast<const std::uint16_t*>(tile);
    const auto* const residue =
        reinterpret_cast<const std::int16_t*>(weight + TilesJoin::tile_elements);
    float masters[each];
    for (unsigned n = 0; n < each; ++n) {
        const unsigned i = n * TilesJoin::threads + threadIdx.x;
        masters[n] = spillway::cpu_optim::join({weight[i], residue[i]});
    }
    __syncthreads();
    for (unsigned n = 0; n < each; ++n)
        tile[n * TilesJoin::threads + threadIdx.x] = masters[n];
}
