// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/update/state_update.h"

#include "cpu_optim/lossy_state.h"

namespace spillway::offload::detail {
namespace {

using cpu_optim::StateFormat;

static_assert(tensor_alignment_elements == cpu_optim::block_elements);

/// Calls visit(number, plane) for each state plane that the chunk keeps.
template <typename Visit>
void for_each_state_plane(const ChunkPlanes& chunk, StateFormat format, Visit visit) {
    std::size_t number = 0;
    for (const auto plane : state_planes_in(format)) {
        if (chunk.planes.contains(plane))
            visit(number++, plane);
    }
}

/// Of a run in a lossy format; its state is still to be set.
template <class Run>
Run lossy_run(const TilePart& part, const cpu_optim::ElementwiseRun& from) {
    Run run;
    run.elements = from.elements;
    run.first_element = part.in_tensor;
    run.master = from.master;
    run.weight = from.weight;
    run.residue = from.residue;
    run.gradient = from.gradient;
    run.gradient_type = from.gradient_type;
    return run;
}

void set_exact_state(const TilePart& part, cpu_optim::ElementwiseRun& run) {
    for_each_state_plane(part.chunk, StateFormat::fp32, [&](std::size_t number, Plane plane) {
        run.state[number] =
            reinterpret_cast<float*>(part.chunk.tile(plane, part.index)) + part.in_tile;
    });
}

}  // namespace

std::size_t update_tile_part(cpu_optim::Isa isa,
                             const cpu_optim::ElementwiseCoefficients& coefficients,
                             const cpu_optim::RoundingStream& stream, const TilePart& part,
                             cpu_optim::ElementwiseRun run) {
    const auto& chunk = part.chunk;
    const auto format = state_format_of(chunk.planes);
    if (format == StateFormat::fp32) {
        set_exact_state(part, run);
        return cpu_optim::update_run(isa, coefficients, run);
    }
    if (format == StateFormat::bf16) {
        auto lossy = lossy_run<cpu_optim::Bf16Run>(part, run);
        for_each_state_plane(chunk, format, [&](std::size_t number, Plane plane) {
            lossy.state[number] =
                reinterpret_cast<std::uint16_t*>(chunk.tile(plane, part.index)) + part.in_tile;
        });
        return cpu_optim::update_run(isa, coefficients, stream, lossy);
    }
    auto lossy = lossy_run<cpu_optim::Int8Run>(part, run);
    for_each_state_plane(chunk, format, [&](std::size_t number, Plane plane) {
        lossy.codes[number] =
            reinterpret_cast<std::uint8_t*>(chunk.tile(plane, part.index)) + part.in_tile;
        lossy.scales[number] =
            reinterpret_cast<std::uint8_t*>(chunk.tile(Plane::scales, part.index)) +
            scales_offset_bytes(number) + part.in_tile / tensor_alignment_elements;
    });
    return cpu_optim::update_run(isa, coefficients, stream, lossy);
}

cpu_optim::LayerSums measure_tile_part(cpu_optim::Isa isa,
                                       const cpu_optim::LayerwiseCoefficients& coefficients,
                                       const TilePart& part, cpu_optim::ElementwiseRun run) {
    set_exact_state(part, run);
    return cpu_optim::measure_run(isa, coefficients, run);
}

std::size_t update_tile_part(cpu_optim::Isa isa, const cpu_optim::LayerwiseStep& step,
                             const TilePart& part, cpu_optim::ElementwiseRun run) {
    set_exact_state(part, run);
    return cpu_optim::update_run(isa, step, run);
}

}  // namespace spillway::offload::detail
