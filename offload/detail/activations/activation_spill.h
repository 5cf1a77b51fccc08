// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "nvme/io_queue.h"
#include "offload/activations.h"
#include "offload/detail/drives/drive_files.h"
#include "offload/detail/drives/tile_store.h"

namespace spillway::offload::detail {

/// The files in which layers' inputs rest that neither device nor host memory has room for: one a
/// drive, without a name, so that whatever ends the process leaves none. Inputs are divided in
/// proportion to `rates` and stored in pieces of activation_piece_bytes, each with its checksum.
/// Thread-safe for calls on different inputs.
class ActivationSpill {
  public:
    /// Reserves the room; a drive that lacks it is a std::system_error with needed and available
    /// bytes. Nothing is made for a layout that has nothing on a drive.
    ActivationSpill(const DriveQueues& queues, std::span<const std::filesystem::path> folders,
                    const ActivationLayout& layout, std::span<const double> rates);

    /// A piece of an input, and how long it is in a file: whole blocks of 4 KiB.
    struct Piece {
        std::size_t layer = 0;
        std::size_t micro_batch = 0;
        std::size_t number = 0;
    };
    [[nodiscard]] std::size_t pieces() const noexcept { return pieces_; }  ///< of an input
    [[nodiscard]] std::size_t stored_bytes(std::size_t number) const noexcept;

    /// Checksums the piece and starts the write.
    [[nodiscard]] PendingIo write(const Piece& piece, const std::byte* from);
    [[nodiscard]] PendingIo read(const Piece& piece, std::byte* into);
    /// Throws IntegrityError unless `data` is what was written last.
    void verify(const Piece& piece, const std::byte* data) const;

  private:
    struct Place {
        std::size_t drive = 0;
        std::uint64_t offset_bytes = 0;
    };
    [[nodiscard]] std::size_t input(const Piece& piece) const noexcept {
        return inputs_before_[piece.layer] + piece.micro_batch;
    }
    [[nodiscard]] std::uint64_t offset_bytes(const Piece& piece) const noexcept;
    [[nodiscard]] DriveFile& file_of(const Piece& piece) {
        return files_[places_[input(piece)].drive];
    }

    std::size_t slot_bytes_;
    std::size_t pieces_;
    std::vector<std::size_t> inputs_before_;  // by layer: how many of those before it lie here
    std::vector<DriveFile> files_;            // by drive; none if nothing lies here
    std::vector<Place> places_;               // by input
    std::vector<std::uint64_t> checksums_;    // by input and piece
};

}  // namespace spillway::offload::detail
