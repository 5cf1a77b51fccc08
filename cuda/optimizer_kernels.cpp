// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/optimizer_kernels.h"

#include <stdexcept>
#include <variant>

#include <fmt/format.h>

#include "cuda/kernel_planes.h"
#include "cuda/kernels/parameters.h"
#include "cuda/launch_shapes.h"

namespace spillway::cuda {
namespace {

template <typename Coefficients>
void update_by(KernelStream& stream, const Coefficients& coefficients,
               const cpu_optim::ElementwiseRun& run, unsigned long long* counted) {
    for (std::size_t plane = 0; plane < cpu_optim::state_planes(coefficients); ++plane)
        require_plane("update_run", fmt::format("state[{}]", plane), run.state[plane]);
    launch(stream, elementwise_shape(run.elements),
           ElementwiseUpdate<Coefficients>{coefficients,
                                           updated_planes(run, counted),
                                           {run.state[0], run.state[1], run.state[2]}});
}

}  // namespace

void update_run(KernelStream& stream, const cpu_optim::ElementwiseCoefficients& coefficients,
                const cpu_optim::ElementwiseRun& run, unsigned long long* counted) {
    if (run.elements == 0)
        return;
    require_updated_planes(run, counted);
    std::visit([&](const auto& rule) { update_by(stream, rule, run, counted); }, coefficients.rule);
}

void update_average(KernelStream& stream, const cpu_optim::AverageCoefficients& coefficients,
                    const cpu_optim::AverageRun& run) {
    if (run.elements == 0)
        return;
    require_masters("update_average", run.master, run.weight, run.residue);
    require_plane("update_average", "average", run.average);
    launch(stream, elementwise_shape(run.elements),
           AverageUpdate{.starts = coefficients.starts,
                         .share = coefficients.share,
                         .elements = run.elements,
                         .master = run.master,
                         .weight = run.weight,
                         .residue = run.residue,
                         .average = run.average});
}

void scan_gradient(KernelStream& stream, const void* gradient, cpu_optim::GradientType type,
                   std::size_t elements, std::size_t tile_elements, double* sums,
                   unsigned long long* nonfinite) {
    // 64: few enough for every tile of a small chunk to have a block's share of the device.
    constexpr unsigned threads = 64;
    constexpr std::size_t tiles_a_block = threads / GradientScans::threads_a_tile;
    if (elements == 0)
        return;
    if (tile_elements == 0 || tile_elements % GradientScans::threads_a_tile != 0)
        throw std::invalid_argument(
            fmt::format("scan_gradient on a device: tile_elements is {}, but must be a multiple of "
                        "{}",
                        tile_elements, GradientScans::threads_a_tile));
    require_plane("scan_gradient", "gradient", gradient);
    require_plane("scan_gradient", "sums", sums);
    require_plane("scan_gradient", "nonfinite", nonfinite);
    const GradientScans scans{.gradient = gradient,
                              .type = type,
                              .elements = elements,
                              .tile_elements = tile_elements,
                              .sums = sums,
                              .nonfinite = nonfinite};
    const auto blocks = blocks_for(scans.tiles(), tiles_a_block);
    launch(stream, {.blocks = static_cast<unsigned>(blocks), .threads = threads}, scans);
}

void add_gradient(KernelStream& stream, float* into, const float* from, std::size_t elements) {
    if (elements == 0)
        return;
    require_plane("add_gradient", "into", into);
    require_plane("add_gradient", "from", from);
    launch(stream, elementwise_shape(elements),
           GradientAddition{.elements = elements, .into = into, .from = from});
}

void widen_gradient(KernelStream& stream, const std::uint16_t* from, cpu_optim::GradientType type,
                    float* to, std::size_t elements) {
    if (type == cpu_optim::GradientType::fp32)
        throw std::invalid_argument("widen_gradient on a device: fp32 is as wide as it gets: copy");
    if (elements == 0)
        return;
    require_plane("widen_gradient", "from", from);
    require_plane("widen_gradient", "to", to);
    launch(stream, elementwise_shape(elements),
           GradientWidening{.elements = elements, .from = from, .type = type, .to = to});
}

void join_master(KernelStream& stream, const std::uint16_t* weight, const std::int16_t* residue,
                 float* master, std::size_t elements) {
    if (elements == 0)
        return;
    require_plane("join_master", "weight", weight);
    require_plane("join_master", "residue", residue);
    require_plane("join_master", "master", master);
    launch(
        stream, elementwise_shape(elements),
        MasterJoin{.elements = elements, .weight = weight, .residue = residue, .master = master});
}

void split_master(KernelStream& stream, const float* master, std::uint16_t* weight,
                  std::int16_t* residue, std::size_t elements, unsigned long long* counted) {
    if (elements == 0)
        return;
    require_plane("split_master", "master", master);
    require_plane("split_master", "weight", weight);
    require_plane("split_master", "residue", residue);
    require_plane("split_master", "counted", counted);
    launch(stream, elementwise_shape(elements),
           MasterSplit{.elements = elements,
                       .master = master,
                       .weight = weight,
                       .residue = residue,
                       .counted = counted});
}

void join_tiles(KernelStream& stream, float* data, std::size_t tiles) {
    if (tiles == 0)
        return;
    require_plane("join_tiles", "data", data);
    launch(stream, {.blocks = static_cast<unsigned>(tiles), .threads = TilesJoin::threads},
           TilesJoin{.tiles = tiles, .data = data});
}

}  // namespace spillway::cuda
