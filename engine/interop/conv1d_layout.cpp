// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/interop/conv1d_layout.h"

#include <algorithm>
#include <array>

namespace spillway::engine {

namespace {

constexpr std::size_t read_buffer_bytes = std::size_t{1} << 20;
/// 64 x 64 floats from and to fit the first-level cache together.
constexpr std::uint64_t block = 64;

/// to[c * to_pitch + r] = from[r * columns + c].
void transpose(std::span<const float> from, std::uint64_t rows, std::uint64_t columns, float* to,
               std::uint64_t to_pitch) {
    for (std::uint64_t row = 0; row < rows; row += block) {
        const auto row_end = std::min(rows, row + block);
        for (std::uint64_t column = 0; column < columns; column += block) {
            const auto column_end = std::min(columns, column + block);
            for (auto c = column; c < column_end; ++c) {
                for (auto r = row; r < row_end; ++r)
                    to[c * to_pitch + r] = from[r * columns + c];
            }
        }
    }
}

}  // namespace

bool is_conv1d(std::string_view name) noexcept {
    constexpr std::array<std::string_view, 3> endings{".c_attn.weight", ".c_proj.weight",
                                                      ".c_fc.weight"};
    return std::any_of(endings.begin(), endings.end(),
                       [&](std::string_view ending) { return name.ends_with(ending); });
}

Conv1dSink::Conv1dSink(SafetensorsWriter& writer, std::size_t tensor, std::size_t buffer_bytes)
    : writer_(writer),
      tensor_(tensor),
      dtype_(writer.tensors()[tensor].dtype),
      inputs_(writer.tensors()[tensor].shape[0]),
      outputs_(writer.tensors()[tensor].shape[1]) {
    // A panel, its transpose, and that in the type of the file.
    const auto row_bytes = inputs_ * (2 * sizeof(float) + dtype_bytes(dtype_));
    panel_rows_ = std::clamp<std::uint64_t>(buffer_bytes / row_bytes, 1, outputs_);
    panel_.reserve(panel_rows_ * inputs_);
    turned_.resize(panel_rows_ * inputs_);
    stored_.resize(panel_rows_ * inputs_ * dtype_bytes(dtype_));
}

void Conv1dSink::take(std::span<const float> values) {
    while (!values.empty()) {
        const auto room = panel_rows_ * inputs_ - panel_.size();
        const auto part = values.first(std::min<std::size_t>(values.size(), room));
        panel_.insert(panel_.end(), part.begin(), part.end());
        values = values.subspan(part.size());
        const auto rows = panel_.size() / inputs_;
        if (rows == panel_rows_ || first_row_ + rows == outputs_)
            flush();
    }
}

void Conv1dSink::flush() {
    const auto rows = panel_.size() / inputs_;
    transpose(panel_, rows, inputs_, turned_.data(), rows);
    const auto element_bytes = dtype_bytes(dtype_);
    const auto stored = std::span(stored_).first(panel_.size() * element_bytes);
    encode_floats(dtype_, std::span(turned_).first(panel_.size()), stored);
    if (rows == outputs_) {
        writer_.write(tensor_, 0, stored);
    } else {
        for (std::uint64_t input = 0; input < inputs_; ++input)
            writer_.write(tensor_, (input * outputs_ + first_row_) * element_bytes,
                          stored.subspan(input * rows * element_bytes, rows * element_bytes));
    }
    first_row_ += rows;
    panel_.clear();
}

void read_conv1d(const SafetensorsReader& reader, const SafetensorsTensor& tensor,
                 std::span<float> out) {
    const auto inputs = tensor.shape[0];
    const auto outputs = tensor.shape[1];
    const auto rows_at_once =
        std::clamp<std::uint64_t>(read_buffer_bytes / sizeof(float) / outputs, 1, inputs);
    std::vector<float> rows(rows_at_once * outputs);
    for (std::uint64_t input = 0; input < inputs; input += rows_at_once) {
        const auto count = std::min(rows_at_once, inputs - input);
        const auto part = std::span(rows).first(count * outputs);
        reader.read_floats(tensor, input * outputs, part);
        transpose(part, count, outputs, out.data() + input, inputs);
    }
}

}  // namespace spillway::engine
