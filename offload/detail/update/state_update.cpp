// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/update/state_update.h"

#include <type_traits>

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

/// use(run) with `run` and the state in the format in which the chunk keeps it.
template <typename Use>
auto with_state(const TilePart& part, cpu_optim::ElementwiseRun run, const Use& use) {
    const auto& chunk = part.chunk;
    const auto format = state_format_of(chunk.planes);
    if (format == StateFormat::fp32) {
        for_each_state_plane(chunk, format, [&](std::size_t number, Plane plane) {
            run.state[number] =
                reinterpret_cast<float*>(chunk.tile(plane, part.index)) + part.in_tile;
        });
        return use(run);
    }
    if (format == StateFormat::bf16) {
        auto lossy = lossy_run<cpu_optim::Bf16Run>(part, run);
        for_each_state_plane(chunk, format, [&](std::size_t number, Plane plane) {
            lossy.state[number] =
                reinterpret_cast<std::uint16_t*>(chunk.tile(plane, part.index)) + part.in_tile;
        });
        return use(lossy);
    }
    auto lossy = lossy_run<cpu_optim::Int8Run>(part, run);
    for_each_state_plane(chunk, format, [&](std::size_t number, Plane plane) {
        lossy.codes[number] =
            reinterpret_cast<std::uint8_t*>(chunk.tile(plane, part.index)) + part.in_tile;
        lossy.scales[number] =
            reinterpret_cast<std::uint8_t*>(chunk.tile(Plane::scales, part.index)) +
            scales_offset_bytes(number) + part.in_tile / tensor_alignment_elements;
    });
    return use(lossy);
}

/// `rule`: of either family.
template <class Rule>
std::size_t update_by(cpu_optim::Isa isa, const Rule& rule, const cpu_optim::RoundingStream& stream,
                      const TilePart& part, const cpu_optim::ElementwiseRun& run) {
    return with_state(part, run, [&](const auto& with) {
        if constexpr (std::is_same_v<std::decay_t<decltype(with)>, cpu_optim::ElementwiseRun>)
            return cpu_optim::update_run(isa, rule, with);
        else
            return cpu_optim::update_run(isa, rule, stream, with);
    });
}

}  // namespace

std::size_t update_tile_part(cpu_optim::Isa isa,
                             const cpu_optim::ElementwiseCoefficients& coefficients,
                             const cpu_optim::RoundingStream& stream, const TilePart& part,
                             const cpu_optim::ElementwiseRun& run) {
    return update_by(isa, coefficients, stream, part, run);
}

std::size_t update_tile_part(cpu_optim::Isa isa, const cpu_optim::LayerwiseStep& step,
                             const cpu_optim::RoundingStream& stream, const TilePart& part,
                             const cpu_optim::ElementwiseRun& run) {
    return update_by(isa, step, stream, part, run);
}

cpu_optim::LayerSums measure_tile_part(cpu_optim::Isa isa,
                                       const cpu_optim::LayerwiseCoefficients& coefficients,
                                       const TilePart& part, const cpu_optim::ElementwiseRun& run) {
    return with_state(part, run, [&](const auto& with) {
        return cpu_optim::measure_run(isa, coefficients, with);
    });
}

}  // namespace spillway::offload::detail
