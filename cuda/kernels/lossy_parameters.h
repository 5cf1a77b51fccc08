// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include "cpu_optim/moment_codec.h"
#include "cuda/kernels/parameters.h"

/// parameters.h for updates whose state is kept in fewer bits.
namespace spillway::cuda {

/// Where the random numbers of a run's elements come from: all have the upper 32 bits of their
/// number in the tensor for which the key was made.
struct RoundingSource {
    cpu_optim::RoundingKey key;
    std::uint64_t first_element;  ///< of the run, in its tensor
};

template <typename Coefficients>
struct Bf16Update {
    static constexpr const char* kernel = kernels_of<Coefficients>.bf16;
    Coefficients coefficients;
    UpdatedPlanes planes;
    RoundingSource rounding;
    std::uint16_t* state[cpu_optim::most_lossy_planes];

    template <typename Visitor>
    void for_each_memory(Visitor& visitor) {
        planes.for_each_memory(visitor);
        for (std::size_t plane = 0; plane < cpu_optim::state_planes(coefficients); ++plane)
            visitor.writes("state", state[plane], planes.elements);
    }
};

/// A warp takes a block of codes, whose words are as cpu_optim::code_place() has them; blocks of a
/// whole number of warps.
template <typename Coefficients>
struct Int8Update {
    static constexpr const char* kernel = kernels_of<Coefficients>.int8;
    static constexpr std::size_t words_a_block = cpu_optim::block_elements / 4;
    Coefficients coefficients;
    UpdatedPlanes planes;
    RoundingSource rounding;  ///< first_element is a multiple of cpu_optim::block_elements
    std::uint32_t* codes[cpu_optim::most_lossy_planes];
    std::uint8_t* scales[cpu_optim::most_lossy_planes];

    [[nodiscard]] constexpr std::size_t blocks() const {
        return (planes.elements + cpu_optim::block_elements - 1) / cpu_optim::block_elements;
    }
    template <typename Visitor>
    void for_each_memory(Visitor& visitor) {
        planes.for_each_memory(visitor);
        for (std::size_t plane = 0; plane < cpu_optim::state_planes(coefficients); ++plane) {
            visitor.writes("codes", codes[plane], blocks() * words_a_block);
            visitor.writes("scales", scales[plane], blocks());
        }
    }
};

}  // namespace spillway::cuda
