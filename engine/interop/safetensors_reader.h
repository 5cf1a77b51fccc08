// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "engine/interop/safetensors_header.h"
#include "nvme/direct_file.h"

namespace spillway::engine {

/// A safetensors file opened for reading, piece by piece. Everything the file claims is checked
/// before memory is taken for it. Every error is a std::runtime_error (std::system_error for the
/// system's own) that names the path. Thread-safe once constructed.
class SafetensorsReader {
  public:
    explicit SafetensorsReader(const std::filesystem::path& path);

    /// In the order of their data.
    [[nodiscard]] std::span<const SafetensorsTensor> tensors() const noexcept {
        return header_.tensors;
    }
    [[nodiscard]] const std::map<std::string, std::string>& metadata() const noexcept {
        return header_.metadata;
    }
    /// nullptr if there is none of that name.
    [[nodiscard]] const SafetensorsTensor* find(std::string_view name) const noexcept;

    /// Fills `into` from byte `offset_bytes` of a tensor of this file on.
    void read(const SafetensorsTensor& tensor, std::uint64_t offset_bytes,
              std::span<std::byte> into) const;
    /// Elements first .. first + out.size() as floats; types as in is_float_convertible().
    void read_floats(const SafetensorsTensor& tensor, std::uint64_t first,
                     std::span<float> out) const;

  private:
    nvme::DirectFile file_;
    std::uint64_t data_begin_bytes_ = 0;
    SafetensorsHeader header_;
    std::map<std::string, std::size_t, std::less<>> index_;
};

}  // namespace spillway::engine
