// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/update/state_update.h"

#include <algorithm>

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

/// Elements `first` .. `first` + `count` of a run.
cpu_optim::ElementwiseRun piece_of(const cpu_optim::ElementwiseRun& run, std::size_t first,
                                   std::size_t count) {
    auto piece = run;
    const auto advance = [&](auto& pointer) {
        if (pointer != nullptr)
            pointer += first;
    };
    piece.elements = count;
    advance(piece.master);
    advance(piece.weight);
    advance(piece.residue);
    for (auto& plane : piece.state)
        advance(plane);
    piece.gradient = static_cast<const std::byte*>(run.gradient) +
                     first * cpu_optim::gradient_bytes(run.gradient_type);
    return piece;
}

/// Of which all planes lie in the nearest cache between the two halves of a pass 2.
constexpr std::size_t piece_elements = 1024;

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

std::size_t update_tile_part(cpu_optim::Isa isa,
                             const cpu_optim::LayerwiseCoefficients& coefficients, float step,
                             const TilePart& part, cpu_optim::ElementwiseRun run) {
    set_exact_state(part, run);
    std::size_t nonfinite = 0;
    for (std::size_t first = 0; first < run.elements; first += piece_elements) {
        const auto piece = piece_of(run, first, std::min(piece_elements, run.elements - first));
        static_cast<void>(cpu_optim::prepare_run(isa, coefficients, piece));
        nonfinite += cpu_optim::apply_run(isa, coefficients, step, piece);
    }
    return nonfinite;
}

}  // namespace spillway::offload::detail
