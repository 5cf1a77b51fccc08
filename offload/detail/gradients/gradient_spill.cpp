// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/gradients/gradient_spill.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "offload/detail/state/run_files.h"
#include "offload/detail/state/scratch_file.h"
#include "offload/offload_engine.h"

namespace spillway::offload::detail {

GradientSpill::GradientSpill(const DriveQueues& queues, std::vector<std::filesystem::path> folders,
                             const OffloadPlan& plan, std::uint64_t tiles,
                             std::span<const double> rates)
    : plan_(plan), tiles_(tiles), places_(plan.chunks), checksums_(tiles, 0) {
    std::vector<std::uint64_t> bytes(folders.size(), 0);
    const auto spilled = std::ranges::count(plan.gradient_resident, std::uint8_t{0});
    const auto drives = divide(static_cast<std::uint64_t>(spilled), rates);
    auto next = drives.begin();
    for (std::uint64_t chunk = 0; chunk < plan.chunks; ++chunk) {
        if (plan.gradient_resident[chunk] != 0)
            continue;
        const auto drive = *next++;
        places_[chunk] = {drive, bytes[drive]};
        bytes[drive] += plan.chunk_range(chunk, tiles).size() * gradient_tile_bytes;
    }
    for (std::size_t drive = 0; drive < folders.size(); ++drive) {
        std::filesystem::remove(folders[drive] / former_gradients_name);
        if (spilled == 0)
            continue;
        auto file = make_scratch_file(folders[drive]);
        if (bytes[drive] != 0)
            file.preallocate(bytes[drive]);
        files_.push_back({&queues[drive], std::move(file)});
    }
}

PendingIo GradientSpill::write(std::uint64_t chunk, const std::byte* gradient) {
    const auto range = plan_.chunk_range(chunk, tiles_);
    for (auto tile = range.begin; tile < range.end; ++tile)
        checksums_[tile] = tile_checksum(
            {gradient + (tile - range.begin) * gradient_tile_bytes, gradient_tile_bytes});
    PendingIo pending;
    pending.add(file_of(chunk).queue->submit(
        nvme::IoRequest::make_write(file_of(chunk).file, places_[chunk].offset_bytes,
                                    {gradient, range.size() * gradient_tile_bytes})));
    return pending;
}

PendingIo GradientSpill::read(std::uint64_t chunk, std::byte* into) {
    PendingIo pending;
    pending.add(file_of(chunk).queue->submit(nvme::IoRequest::make_read(
        file_of(chunk).file, places_[chunk].offset_bytes,
        {into, plan_.chunk_range(chunk, tiles_).size() * gradient_tile_bytes})));
    return pending;
}

void GradientSpill::verify(const ElementOrder& order, std::uint64_t tile,
                           std::span<const std::byte> data) const {
    const auto found = tile_checksum(data);
    if (found == checksums_[tile])
        return;
    const auto chunk = tile / plan_.chunk_tiles;
    const auto offset =
        places_[chunk].offset_bytes + (tile - chunk * plan_.chunk_tiles) * gradient_tile_bytes;
    throw IntegrityError(
        fmt::format("{}: gradient, tile {} read from {} at offset {} has checksum {:016x} and "
                    "should have {:016x}; the step is "
                    "lost: run again with --resume to go on from the last commit",
                    tensors_of_tile(order, tile), tile,
                    files_[drive_of(chunk)].file.path().string(), offset, found, checksums_[tile]));
}

}  // namespace spillway::offload::detail
