// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/gradient_spill.h"

#include <fmt/format.h>

#include "offload/offload_engine.h"

namespace spillway::offload::detail {

GradientSpill::GradientSpill(nvme::IoQueue& queue, const std::filesystem::path& folder,
                             const OffloadPlan& plan, std::uint64_t tiles)
    : queue_(queue),
      plan_(plan),
      tiles_(tiles),
      offsets_bytes_(plan.chunks, 0),
      checksums_(tiles, 0) {
    std::uint64_t bytes = 0;
    for (std::uint64_t chunk = 0; chunk < plan.chunks; ++chunk) {
        offsets_bytes_[chunk] = bytes;
        if (plan.gradient_resident[chunk] == 0)
            bytes += plan.chunk_range(chunk, tiles).size() * gradient_tile_bytes;
    }
    const auto path = folder / "gradients.0";
    std::filesystem::remove(path);
    if (bytes == 0)
        return;
    file_.emplace(path, nvme::OpenMode::create_exclusive, nvme::DirectMode::automatic);
    file_->preallocate(bytes);
}

PendingIo GradientSpill::write(std::uint64_t chunk, const std::byte* gradient) {
    const auto range = plan_.chunk_range(chunk, tiles_);
    for (auto tile = range.begin; tile < range.end; ++tile)
        checksums_[tile] = tile_checksum(
            {gradient + (tile - range.begin) * gradient_tile_bytes, gradient_tile_bytes});
    PendingIo pending;
    pending.add(queue_.submit(nvme::IoRequest::make_write(
        *file_, offsets_bytes_[chunk], {gradient, range.size() * gradient_tile_bytes})));
    return pending;
}

PendingIo GradientSpill::read(std::uint64_t chunk, std::byte* into) {
    PendingIo pending;
    pending.add(queue_.submit(nvme::IoRequest::make_read(
        *file_, offsets_bytes_[chunk],
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
        offsets_bytes_[chunk] + (tile - chunk * plan_.chunk_tiles) * gradient_tile_bytes;
    throw IntegrityError(
        fmt::format("{}: gradient, tile {} read from {} at offset {} has checksum {:016x} and "
                    "should have {:016x}; the step is "
                    "lost: run again with --resume to go on from the last commit",
                    tensors_of_tile(order, tile), tile, file_->path().string(), offset, found,
                    checksums_[tile]));
}

}  // namespace spillway::offload::detail
