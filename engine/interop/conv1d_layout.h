// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/interop/safetensors_reader.h"
#include "engine/interop/safetensors_writer.h"

namespace spillway::engine {

/// Whether Hugging Face stores this tensor of a GPT-2 as Conv1D, [inputs, outputs]: the transpose
/// of ours.
[[nodiscard]] bool is_conv1d(std::string_view name) noexcept;

/// Takes an [outputs, inputs] matrix in pieces, in order, and writes its transpose. Not
/// thread-safe.
class Conv1dSink {
  public:
    /// Buffers at most about `buffer_bytes`, and at least one row. `shape`: {inputs, outputs} as
    /// stored.
    Conv1dSink(SafetensorsWriter& writer, std::size_t tensor, std::size_t buffer_bytes);

    void take(std::span<const float> values);

  private:
    void flush();

    SafetensorsWriter& writer_;
    std::size_t tensor_;
    TensorDtype dtype_;
    std::uint64_t inputs_;
    std::uint64_t outputs_;
    std::uint64_t first_row_ = 0;  ///< of the panel
    std::uint64_t panel_rows_;     ///< at most
    std::vector<float> panel_;
    std::vector<float> turned_;
    std::vector<std::byte> stored_;
};

/// Reads a stored {inputs, outputs} matrix as [outputs, inputs].
void read_conv1d(const SafetensorsReader& reader, const SafetensorsTensor& tensor,
                 std::span<float> out);

}  // namespace spillway::engine
