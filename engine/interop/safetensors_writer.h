// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/interop/safetensors_header.h"
#include "nvme/direct_file.h"

namespace spillway::engine {

/// Writes a safetensors file piece by piece, never holding a tensor. The data goes to
/// PATH.spillway-partial, whose room is reserved at the start (a full disk is refused with needed
/// and available bytes); finish() makes it durable and gives it its name in one step, so PATH is
/// absent, old or whole at any moment. Without finish() the destructor removes the partial file.
/// Not thread-safe. Errors name the path.
class SafetensorsWriter {
  public:
    /// A partial file left by a killed program is replaced. The ranges in `header` are set here.
    SafetensorsWriter(std::filesystem::path path, SafetensorsHeader header);
    ~SafetensorsWriter();
    SafetensorsWriter(const SafetensorsWriter&) = delete;  // owns the partial file
    SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

    /// In the order given, which is the order of their data.
    [[nodiscard]] std::span<const SafetensorsTensor> tensors() const noexcept {
        return header_.tensors;
    }
    /// Writes `bytes` at `offset_bytes` of tensor number `tensor`; pieces in any order, each byte
    /// once.
    void write(std::size_t tensor, std::uint64_t offset_bytes, std::span<const std::byte> bytes);

    /// Throws std::logic_error naming a tensor that was not written in full.
    void finish();

  private:
    [[nodiscard]] std::filesystem::path partial_path() const;

    std::filesystem::path path_;
    SafetensorsHeader header_;
    std::uint64_t data_begin_bytes_ = 0;
    std::vector<std::uint64_t> written_bytes_;  ///< per tensor
    std::unique_ptr<nvme::DirectFile> file_;    ///< empty once finished
};

}  // namespace spillway::engine
