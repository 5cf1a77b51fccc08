// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/client/client_weights.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu_optim/split_master.h"

namespace spillway::offload::detail {
namespace {

/// A tensor's part of a tile, as elements of both.
struct Part {
    TensorId tensor;
    std::size_t in_tile, in_tensor, elements;
};

template <typename Visit>
void for_each_part(const ElementOrder& order, std::uint64_t tile, Visit visit) {
    const ElementRange range{tile * tile_elements, (tile + 1) * tile_elements};
    const auto span = order.tensors_in(range);
    for (auto tensor = span.first; tensor < span.last; ++tensor) {
        const auto whole = order.range(tensor);
        const auto begin = std::max(whole.begin, range.begin);
        const auto end = std::min(whole.end, range.end);
        if (begin < end)
            visit(Part{tensor, static_cast<std::size_t>(begin - range.begin),
                       static_cast<std::size_t>(begin - whole.begin),
                       static_cast<std::size_t>(end - begin)});
    }
}

void write_plane(TileStore& store, Plane plane, TileRange tiles, const std::byte* data,
                 UpdateThreads& threads, PendingIo& io, std::vector<std::uint64_t>& checksums) {
    checksums.resize(tiles.size());
    threads.for_each(tiles.size(), [&](std::uint64_t index) {
        checksums[index] = tile_checksum({data + index * tile_bytes(plane), tile_bytes(plane)});
    });
    io.append(store.write(plane, tiles, data));
}

void read_plane(TileStore& store, Plane plane, TileRange tiles, std::byte* into,
                UpdateThreads& threads) {
    store.read(plane, tiles, into).wait();
    threads.for_each(tiles.size(), [&](std::uint64_t index) {
        store.verify(plane, tiles.begin + index,
                     {into + index * tile_bytes(plane), tile_bytes(plane)});
    });
}

}  // namespace

ClientWeightImage::Halves ClientWeightImage::halves_of(std::uint64_t chunk) const {
    const auto plane_bytes =
        static_cast<std::size_t>(context_.plan.chunk_tiles) * tile_bytes(Plane::weight);
    return {context_.plan.chunk_range(chunk, context_.order.tiles()), context_.work.data(),
            context_.work.data() + plane_bytes};
}

/// Where updates keep residues, those of bf16 tensors are taken from there.
void ClientWeightImage::read_residues(TileStore& store, std::uint64_t chunk, const Halves& halves) {
    const auto bytes = static_cast<std::size_t>(halves.tiles.size()) * tile_bytes(Plane::residue);
    if (!context_.plan.planes_of(chunk).contains(Plane::residue))
        std::memset(halves.residue, 0, bytes);
    else if (const auto* const resident = context_.planes.plane(Plane::residue, chunk))
        std::memcpy(halves.residue, resident, bytes);
    else
        read_plane(store, Plane::residue, halves.tiles, halves.residue, context_.threads);
}

void ClientWeightImage::split_tile(const Halves& halves, std::uint64_t index) const {
    auto* const weight =
        reinterpret_cast<std::uint16_t*>(halves.weight + index * tile_bytes(Plane::weight));
    auto* const residue =
        reinterpret_cast<std::int16_t*>(halves.residue + index * tile_bytes(Plane::residue));
    std::fill_n(weight, tile_elements, std::uint16_t{0});
    for_each_part(context_.order, halves.tiles.begin + index, [&](const Part& part) {
        const auto& tensor = context_.tensors[part.tensor];
        if (tensor.type == ParameterType::fp32) {
            // Exact for every bit pattern; whether a half is finite is the client's business.
            static_cast<void>(cpu_optim::split_master(
                context_.threads.isa(),
                {static_cast<const float*>(tensor.data) + part.in_tensor, part.elements},
                {weight + part.in_tile, part.elements}, {residue + part.in_tile, part.elements}));
            return;
        }
        std::copy_n(static_cast<const std::uint16_t*>(tensor.data) + part.in_tensor, part.elements,
                    weight + part.in_tile);
        if (tensor.fresh_residue)
            std::fill_n(residue + part.in_tile, part.elements, std::int16_t{0});
    });
}

void ClientWeightImage::join_tile(const Halves& halves, std::uint64_t index) const {
    const auto* const weight =
        reinterpret_cast<const std::uint16_t*>(halves.weight + index * tile_bytes(Plane::weight));
    const auto* const residue =
        reinterpret_cast<const std::int16_t*>(halves.residue + index * tile_bytes(Plane::residue));
    for_each_part(context_.order, halves.tiles.begin + index, [&](const Part& part) {
        const auto& tensor = context_.tensors[part.tensor];
        if (tensor.type == ParameterType::fp32)
            cpu_optim::join_master(
                context_.threads.isa(), {weight + part.in_tile, part.elements},
                {residue + part.in_tile, part.elements},
                {static_cast<float*>(tensor.data) + part.in_tensor, part.elements});
        else
            std::copy_n(weight + part.in_tile, part.elements,
                        static_cast<std::uint16_t*>(tensor.data) + part.in_tensor);
    });
}

std::uint64_t ClientWeightImage::write(TileStore& store) {
    std::uint64_t bytes = 0;
    for (std::uint64_t chunk = 0; chunk < context_.plan.chunks; ++chunk) {
        const auto halves = halves_of(chunk);
        read_residues(store, chunk, halves);
        context_.threads.for_each(halves.tiles.size(),
                                  [&](std::uint64_t index) { split_tile(halves, index); });
        PendingIo io;
        std::vector<std::uint64_t> weight_sums;
        std::vector<std::uint64_t> residue_sums;
        write_plane(store, Plane::weight, halves.tiles, halves.weight, context_.threads, io,
                    weight_sums);
        write_plane(store, Plane::residue, halves.tiles, halves.residue, context_.threads, io,
                    residue_sums);
        io.wait();
        store.wrote(Plane::weight, halves.tiles, weight_sums);
        store.wrote(Plane::residue, halves.tiles, residue_sums);
        bytes += halves.tiles.size() * (tile_bytes(Plane::weight) + tile_bytes(Plane::residue));
    }
    return bytes;
}

void ClientWeightImage::load(TileStore& store) {
    for (std::uint64_t chunk = 0; chunk < context_.plan.chunks; ++chunk) {
        const auto halves = halves_of(chunk);
        read_plane(store, Plane::weight, halves.tiles, halves.weight, context_.threads);
        read_plane(store, Plane::residue, halves.tiles, halves.residue, context_.threads);
        context_.threads.for_each(halves.tiles.size(),
                                  [&](std::uint64_t index) { join_tile(halves, index); });
    }
}

}  // namespace spillway::offload::detail
