// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/row_copy.h"

#include <cstdint>
#include <cstring>
#include <stdexcept>

#include <fmt/format.h>

namespace spillway::cuda {
namespace {

std::size_t extent_bytes(std::size_t pitch, std::size_t row_bytes, std::size_t rows) noexcept {
    return row_bytes == 0 || rows == 0 ? 0 : (rows - 1) * pitch + row_bytes;
}

void check_side(std::string_view call, std::string_view side, const void* pointer,
                std::size_t pitch, const RowCopy& copy) {
    if (pointer == nullptr)
        throw std::invalid_argument(fmt::format("{}: the {} is null, but {} bytes are to be copied",
                                                call, side, copy.bytes()));
    if (copy.rows > 1 && pitch < copy.row_bytes)
        throw std::invalid_argument(
            fmt::format("{}: the rows of the {} overlap: they are {} bytes long and {} bytes apart",
                        call, side, copy.row_bytes, pitch));
    constexpr auto limit = static_cast<std::size_t>(PTRDIFF_MAX);
    if (copy.row_bytes > limit ||
        (copy.rows > 1 && pitch > (limit - copy.row_bytes) / (copy.rows - 1)))
        throw std::invalid_argument(
            fmt::format("{}: {} rows of {} bytes, {} apart, do not fit the address space", call,
                        copy.rows, copy.row_bytes, pitch));
}

}  // namespace

std::size_t RowCopy::to_extent_bytes() const noexcept {
    return extent_bytes(to_pitch, row_bytes, rows);
}

std::size_t RowCopy::from_extent_bytes() const noexcept {
    return extent_bytes(from_pitch, row_bytes, rows);
}

void RowCopy::check(std::string_view call) const {
    if (row_bytes == 0 || rows == 0)
        return;
    check_side(call, "destination", to, to_pitch, *this);
    check_side(call, "source", from, from_pitch, *this);
}

void RowCopy::execute() const noexcept {
    if (row_bytes == 0 || rows == 0)
        return;
    // memmove: on the host's own device a caller may copy a buffer onto itself.
    if (rows == 1 || (to_pitch == row_bytes && from_pitch == row_bytes)) {
        std::memmove(to, from, bytes());
        return;
    }
    for (std::size_t row = 0; row < rows; ++row)
        std::memmove(to + row * to_pitch, from + row * from_pitch, row_bytes);
}

}  // namespace spillway::cuda
