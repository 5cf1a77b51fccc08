// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/activations/activation_spill.h"

#include <algorithm>

#include <fmt/format.h>

#include "offload/detail/activations/activation_needs.h"
#include "offload/detail/state/scratch_file.h"
#include "offload/errors.h"

namespace spillway::offload::detail {

ActivationSpill::ActivationSpill(const DriveQueues& queues,
                                 std::span<const std::filesystem::path> folders,
                                 const ActivationLayout& layout, std::span<const double> rates)
    : slot_bytes_(activation_slot_bytes(layout)), pieces_(pieces_of_activation(layout)) {
    std::size_t inputs = 0;
    for (const auto tier : layout.tiers) {
        inputs_before_.push_back(inputs);
        inputs += tier == ActivationTier::nvme ? layout.micro_batches : 0;
    }
    if (inputs == 0)
        return;
    checksums_.resize(inputs * pieces_);
    std::vector<std::uint64_t> bytes(folders.size(), 0);
    for (const auto drive : divide(inputs, rates)) {
        places_.push_back({drive, bytes[drive]});
        bytes[drive] += slot_bytes_;
    }
    for (std::size_t drive = 0; drive < folders.size(); ++drive) {
        auto file = make_scratch_file(folders[drive]);
        if (bytes[drive] != 0)
            file.preallocate(bytes[drive]);
        files_.push_back({&queues[drive], std::move(file)});
    }
}

std::size_t ActivationSpill::stored_bytes(std::size_t number) const noexcept {
    return std::min(activation_piece_bytes, slot_bytes_ - number * activation_piece_bytes);
}

std::uint64_t ActivationSpill::offset_bytes(const Piece& piece) const noexcept {
    return places_[input(piece)].offset_bytes + piece.number * activation_piece_bytes;
}

PendingIo ActivationSpill::write(const Piece& piece, const std::byte* from) {
    const std::span data{from, stored_bytes(piece.number)};
    checksums_[input(piece) * pieces_ + piece.number] = tile_checksum(data);
    PendingIo pending;
    auto& [queue, file] = file_of(piece);
    pending.add(queue->submit(nvme::IoRequest::make_write(file, offset_bytes(piece), data)));
    return pending;
}

PendingIo ActivationSpill::read(const Piece& piece, std::byte* into) {
    PendingIo pending;
    auto& [queue, file] = file_of(piece);
    pending.add(queue->submit(
        nvme::IoRequest::make_read(file, offset_bytes(piece), {into, stored_bytes(piece.number)})));
    return pending;
}

void ActivationSpill::verify(const Piece& piece, const std::byte* data) const {
    const auto expected = checksums_[input(piece) * pieces_ + piece.number];
    const auto found = tile_checksum({data, stored_bytes(piece.number)});
    if (found == expected)
        return;
    throw IntegrityError(fmt::format(
        "input of layer {}, micro-batch {}, piece {} read from {} at offset {} has checksum "
        "{:016x} and should have {:016x}; the step is lost: run again with --resume to go on from "
        "the last commit",
        piece.layer, piece.micro_batch, piece.number,
        files_[places_[input(piece)].drive].file.path().string(), offset_bytes(piece), found,
        expected));
}

}  // namespace spillway::offload::detail
