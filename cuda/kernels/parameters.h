// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu_optim/elementwise_coefficients.h"
#include "cpu_optim/gradient_scan.h"

/// The one parameter of each kernel, as host and device both see it. `kernel` is its name;
/// for_each_memory() hands every pointer, with how much is behind it, to a visitor: a launch checks
/// them, and nothing else may be touched. Included by kernels: plain structs alone.
namespace spillway::cuda {

/// The kernels that share out elements take any number of threads and blocks.
inline constexpr unsigned elementwise_threads = 256;

/// One run of elements without its state, as cpu_optim::ElementwiseRun.
struct UpdatedPlanes {
    std::size_t elements;
    float* master;
    std::uint16_t* weight;
    std::int16_t* residue;
    const void* gradient;
    cpu_optim::GradientType gradient_type;
    unsigned long long* counted;  ///< masters that are as update_run() counts them are added here

    template <typename Visitor>
    void for_each_memory(Visitor& visitor) {
        visitor.writes("master", master, elements);
        visitor.writes("weight", weight, elements);
        visitor.writes("residue", residue, elements);
        auto bytes = static_cast<const std::byte*>(gradient);
        visitor.reads("gradient", bytes, elements * cpu_optim::gradient_bytes(gradient_type));
        gradient = bytes;
        visitor.writes("counted", counted, 1);
    }
};

/// The names of a rule's kernels, one for each format of state.
struct UpdateKernels {
    const char* fp32;
    const char* bf16;
    const char* int8;
};
constexpr UpdateKernels update_kernels(const cpu_optim::AdamCoefficients*) {
    return {"spillway_update_adam", "spillway_update_adam_bf16", "spillway_update_adam_int8"};
}
constexpr UpdateKernels update_kernels(const cpu_optim::SgdCoefficients*) {
    return {"spillway_update_sgd", "spillway_update_sgd_bf16", "spillway_update_sgd_int8"};
}
constexpr UpdateKernels update_kernels(const cpu_optim::AdagradCoefficients*) {
    return {"spillway_update_adagrad", "spillway_update_adagrad_bf16",
            "spillway_update_adagrad_int8"};
}
constexpr UpdateKernels update_kernels(const cpu_optim::LionCoefficients*) {
    return {"spillway_update_lion", "spillway_update_lion_bf16", "spillway_update_lion_int8"};
}
constexpr UpdateKernels update_kernels(const cpu_optim::RmspropCoefficients*) {
    return {"spillway_update_rmsprop", "spillway_update_rmsprop_bf16",
            "spillway_update_rmsprop_int8"};
}
template <typename Coefficients>
inline constexpr UpdateKernels kernels_of =
    update_kernels(static_cast<const Coefficients*>(nullptr));

template <typename Coefficients>
struct ElementwiseUpdate {
    static constexpr const char* kernel = kernels_of<Coefficients>.fp32;
    Coefficients coefficients;
    UpdatedPlanes planes;
    float* state[3];

    template <typename Visitor>
    void for_each_memory(Visitor& visitor) {
        planes.for_each_memory(visitor);
        for (std::size_t plane = 0; plane < cpu_optim::state_planes(coefficients); ++plane)
            visitor.writes("state", state[plane], planes.elements);
    }
};

/// average = weight where it starts, else average + share (weight - average).
struct AverageUpdate {
    static constexpr const char* kernel = "spillway_update_average";
    cpu_optim::Term starts;
    float share;
    std::size_t elements;
    const float* master;
    const std::uint16_t* weight;
    const std::int16_t* residue;
    float* average;

    template <typename Visitor>
    void for_each_memory(Visitor& visitor) {
        visitor.reads("master", master, elements);
        visitor.reads("weight", weight, elements);
        visitor.reads("residue", residue, elements);
        visitor.writes("average", average, elements);
    }
};

/// The sum of squares and the number of non-finite elements of each tile, in the shape of
/// cpu_optim::scan_gradient. Sixteen threads a tile; a block has a multiple of that.
struct GradientScans {
    static constexpr const char* kernel = "spillway_scan_gradient";
    static constexpr unsigned threads_a_tile = 16;
    const void* gradient;
    cpu_optim::GradientType type;
    std::size_t elements;
    std::size_t tile_elements;
    double* sums;                   ///< one a tile
    unsigned long long* nonfinite;  ///< one a tile

    [[nodiscard]] constexpr std::size_t tiles() const {
        return (elements + tile_elements - 1) / tile_elements;
    }
    template <typename Visitor>
    void for_each_memory(Visitor& visitor) {
        auto bytes = static_cast<const std::byte*>(gradient);
        visitor.reads("gradient", bytes, elements * cpu_optim::gradient_bytes(type));
        gradient = bytes;
        visitor.writes("sums", sums, tiles());
        visitor.writes("nonfinite", nonfinite, tiles());
    }
};

/// into += from.
struct GradientAddition {
    static constexpr const char* kernel = "spillway_add_gradient";
    std::size_t elements;
    float* into;
    const float* from;

    template <typename Visitor>
    void for_each_memory(Visitor& visitor) {
        visitor.writes("into", into, elements);
        visitor.reads("from", from, elements);
    }
};

/// `to` = `from`, exactly, from 16 bits.
struct GradientWidening {
    static constexpr const char* kernel = "spillway_widen_gradient";
    std::size_t elements;
    const std::uint16_t* from;
    cpu_optim::GradientType type;
    float* to;

    template <typename Visitor>
    void for_each_memory(Visitor& visitor) {
        visitor.reads("from", from, elements);
        visitor.writes("to", to, elements);
    }
};

struct MasterJoin {
    static constexpr const char* kernel = "spillway_join_master";
    std::size_t elements;
    const std::uint16_t* weight;
    const std::int16_t* residue;
    float* master;

    template <typename Visitor>
    void for_each_memory(Visitor& visitor) {
        visitor.reads("weight", weight, elements);
        visitor.reads("residue", residue, elements);
        visitor.writes("master", master, elements);
    }
};

struct MasterSplit {
    static constexpr const char* kernel = "spillway_split_master";
    std::size_t elements;
    const float* master;
    std::uint16_t* weight;
    std::int16_t* residue;
    unsigned long long* counted;  ///< masters without a finite half are added here

    template <typename Visitor>
    void for_each_memory(Visitor& visitor) {
        visitor.reads("master", master, elements);
        visitor.writes("weight", weight, elements);
        visitor.writes("residue", residue, elements);
        visitor.writes("counted", counted, 1);
    }
};

/// Tiles that hold their weight plane and then their residue plane become fp32 where they lie. One
/// block of `threads` a tile.
struct TilesJoin {
    static constexpr const char* kernel = "spillway_join_tiles";
    static constexpr unsigned threads = 1024;
    static constexpr std::size_t tile_elements = 16384;
    std::size_t tiles;
    float* data;

    template <typename Visitor>
    void for_each_memory(Visitor& visitor) {
        visitor.writes("data", data, tiles * tile_elements);
    }
};

}  // namespace spillway::cuda
