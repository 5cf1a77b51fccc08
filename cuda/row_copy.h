// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <string_view>

namespace spillway::cuda {

/// `rows` runs of `row_bytes`, `to_pitch` and `from_pitch` bytes apart. A plain copy has one row.
struct RowCopy {
    std::byte* to = nullptr;
    std::size_t to_pitch = 0;
    const std::byte* from = nullptr;
    std::size_t from_pitch = 0;
    std::size_t row_bytes = 0;
    std::size_t rows = 0;

    [[nodiscard]] std::size_t bytes() const noexcept { return row_bytes * rows; }
    /// From the first byte of the first row to the last of the last; 0 for an empty copy.
    [[nodiscard]] std::size_t to_extent_bytes() const noexcept;
    [[nodiscard]] std::size_t from_extent_bytes() const noexcept;

    /// Throws std::invalid_argument, naming `call`, for rows that overlap, an extent beyond 2^63
    /// bytes and a null pointer to something.
    void check(std::string_view call) const;
    void execute() const noexcept;
};

}  // namespace spillway::cuda
