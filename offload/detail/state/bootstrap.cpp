// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/state/bootstrap.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <vector>

#include <fmt/format.h>

#include "cpu_optim/split_master.h"

namespace spillway::offload::detail {
namespace {

/// The chunk's planes: resident ones in place, the others in the work buffer behind the masters.
PerPlane<std::byte*> places(const BootstrapContext& context, std::uint64_t chunk) {
    PerPlane<std::byte*> data{};
    const auto chunk_tiles = static_cast<std::size_t>(context.plan.chunk_tiles);
    auto* next = context.work.data() + chunk_tiles * tile_elements * sizeof(float);
    for (const auto plane : context.plan.planes) {
        auto* const resident = context.planes.plane(plane, chunk);
        data[index_of(plane)] = resident != nullptr ? resident : next;
        next += chunk_tiles * tile_bytes(plane);
    }
    return data;
}

void fill_masters(const ElementOrder& order, std::uint64_t tile,
                  const OffloadEngine::InitialValues& fill, std::span<float> masters) {
    std::fill(masters.begin(), masters.end(), 0.0f);
    const ElementRange range{tile * tile_elements, (tile + 1) * tile_elements};
    const auto span = order.tensors_in(range);
    for (auto tensor = span.first; tensor < span.last; ++tensor) {
        const auto whole = order.range(tensor);
        const ElementRange part{std::max(whole.begin, range.begin), std::min(whole.end, range.end)};
        fill(tensor, part.begin - whole.begin,
             masters.subspan(static_cast<std::size_t>(part.begin - range.begin),
                             static_cast<std::size_t>(part.size())));
    }
}

void split_tile(const BootstrapContext& context, std::uint64_t tile, std::span<const float> masters,
                std::byte* weight, std::byte* residue) {
    const auto bad = cpu_optim::split_master(
        context.threads.isa(), masters, {reinterpret_cast<std::uint16_t*>(weight), tile_elements},
        {reinterpret_cast<std::int16_t*>(residue), tile_elements});
    if (bad != 0)
        throw std::invalid_argument(fmt::format("{}: {} initial values have no finite bf16 half",
                                                tensors_of_tile(context.store.order(), tile), bad));
}

}  // namespace

void fill_new_run(const BootstrapContext& context, const OffloadEngine::InitialValues& fill) {
    const auto& order = context.store.order();
    auto* const masters = reinterpret_cast<float*>(context.work.data());
    PerPlane<std::vector<std::uint64_t>> checksums;
    for (std::uint64_t chunk = 0; chunk < context.plan.chunks; ++chunk) {
        const auto tiles = context.plan.chunk_range(chunk, order.tiles());
        const auto data = places(context, chunk);
        for (auto& sums : checksums)
            sums.resize(tiles.size());
        context.threads.for_each(tiles.size(), [&](std::uint64_t index) {
            const auto at = [&](Plane plane) {
                return data[index_of(plane)] + index * tile_bytes(plane);
            };
            const std::span<float> values{masters + index * tile_elements, tile_elements};
            fill_masters(order, tiles.begin + index, fill, values);
            split_tile(context, tiles.begin + index, values, at(Plane::weight), at(Plane::residue));
            for (const auto plane : context.plan.planes) {
                if (plane != Plane::weight && plane != Plane::residue)
                    std::memset(at(plane), 0, tile_bytes(plane));
                checksums[index_of(plane)][index] = tile_checksum({at(plane), tile_bytes(plane)});
            }
        });
        PendingIo writes;
        for (const auto plane : context.plan.planes)
            writes.append(context.store.write(plane, tiles, data[index_of(plane)]));
        writes.wait();
        for (const auto plane : context.plan.planes)
            context.store.wrote(plane, tiles, checksums[index_of(plane)]);
    }
}

void load_resident_planes(const BootstrapContext& context) {
    const auto& order = context.store.order();
    for (std::uint64_t chunk = 0; chunk < context.plan.chunks; ++chunk) {
        const auto tiles = context.plan.chunk_range(chunk, order.tiles());
        PendingIo reads;
        for (const auto plane : context.plan.planes) {
            if (auto* const data = context.planes.plane(plane, chunk))
                reads.append(context.store.read(plane, tiles, data));
        }
        reads.wait();
        context.threads.for_each(tiles.size(), [&](std::uint64_t index) {
            for (const auto plane : context.plan.planes) {
                if (const auto* const data = context.planes.plane(plane, chunk))
                    context.store.verify(plane, tiles.begin + index,
                                         {data + index * tile_bytes(plane), tile_bytes(plane)});
            }
        });
    }
}

}  // namespace spillway::offload::detail
