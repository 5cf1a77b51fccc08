// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/interop/safetensors_reader.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

namespace spillway::engine {

namespace {

constexpr std::size_t length_field_bytes = 8;
constexpr std::size_t conversion_piece_bytes = std::size_t{256} << 10;

[[noreturn]] void fail(const nvme::DirectFile& file, const std::string& what) {
    throw std::runtime_error(
        fmt::format("{} is not a valid safetensors file: {}", file.path().string(), what));
}

void read_fully(const nvme::DirectFile& file, std::uint64_t offset_bytes,
                std::span<std::byte> into) {
    while (!into.empty()) {
        const auto got =
            ::pread(file.descriptor(), into.data(), into.size(), static_cast<off_t>(offset_bytes));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            throw std::system_error(errno, std::generic_category(),
                                    fmt::format("reading {} bytes at {} of {}", into.size(),
                                                offset_bytes, file.path().string()));
        if (got == 0)
            fail(file,
                 fmt::format("it ends at byte {}, {} bytes early", offset_bytes, into.size()));
        offset_bytes += static_cast<std::uint64_t>(got);
        into = into.subspan(static_cast<std::size_t>(got));
    }
}

/// Bytes of the header, after checks that need no memory.
std::uint64_t header_length(const nvme::DirectFile& file, std::uint64_t file_bytes) {
    if (file_bytes < length_field_bytes)
        fail(file, fmt::format("it has {} bytes, the header's length alone takes {}", file_bytes,
                               length_field_bytes));
    std::array<std::byte, length_field_bytes> field{};
    read_fully(file, 0, field);
    std::uint64_t length = 0;
    for (std::size_t i = 0; i < length_field_bytes; ++i)
        length |= std::to_integer<std::uint64_t>(field[i]) << (8 * i);
    if (length > safetensors_header_limit_bytes)
        fail(file, fmt::format("its header claims {} bytes, more than the format's limit of {}",
                               length, safetensors_header_limit_bytes));
    if (length > file_bytes - length_field_bytes)
        fail(file, fmt::format("its header claims {} bytes, but only {} follow", length,
                               file_bytes - length_field_bytes));
    return length;
}

}  // namespace

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path)
    : file_(path, nvme::OpenMode::open_read_only, nvme::DirectMode::buffered) {
    const auto file_bytes = file_.size_bytes();
    const auto header_bytes = header_length(file_, file_bytes);
    std::string text(header_bytes, '\0');
    read_fully(file_, length_field_bytes, std::as_writable_bytes(std::span(text)));
    data_begin_bytes_ = length_field_bytes + header_bytes;
    try {
        header_ = parse_safetensors_header(text, file_bytes - data_begin_bytes_);
    } catch (const std::runtime_error& error) {
        fail(file_, error.what());
    }
    for (std::size_t i = 0; i < header_.tensors.size(); ++i)
        index_.emplace(header_.tensors[i].name, i);
}

const SafetensorsTensor* SafetensorsReader::find(std::string_view name) const noexcept {
    const auto found = index_.find(name);
    return found == index_.end() ? nullptr : &header_.tensors[found->second];
}

void SafetensorsReader::read(const SafetensorsTensor& tensor, std::uint64_t offset_bytes,
                             std::span<std::byte> into) const {
    if (offset_bytes > tensor.size_bytes() || into.size() > tensor.size_bytes() - offset_bytes)
        throw std::out_of_range(fmt::format("bytes {} + {} of tensor '{}', which has {}",
                                            offset_bytes, into.size(), tensor.name,
                                            tensor.size_bytes()));
    read_fully(file_, data_begin_bytes_ + tensor.begin_bytes + offset_bytes, into);
}

void SafetensorsReader::read_floats(const SafetensorsTensor& tensor, std::uint64_t first,
                                    std::span<float> out) const {
    if (!is_float_convertible(tensor.dtype))
        throw std::runtime_error(
            fmt::format("{}: tensor '{}' has the type {}; F32, BF16 and F16 are read",
                        file_.path().string(), tensor.name, dtype_name(tensor.dtype)));
    if (tensor.dtype == TensorDtype::f32) {
        read(tensor, first * sizeof(float), std::as_writable_bytes(out));
        return;
    }
    const auto element_bytes = dtype_bytes(tensor.dtype);
    std::vector<std::byte> stored(std::min(conversion_piece_bytes, out.size() * element_bytes));
    while (!out.empty()) {
        const auto count = std::min(out.size(), stored.size() / element_bytes);
        const auto piece = std::span(stored).first(count * element_bytes);
        read(tensor, first * element_bytes, piece);
        decode_floats(tensor.dtype, piece, out.first(count));
        first += count;
        out = out.subspan(count);
    }
}

}  // namespace spillway::engine
