// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/interop/safetensors_writer.h"

#include <array>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "engine/interop/atomic_file.h"

namespace spillway::engine {

namespace {

constexpr std::size_t length_field_bytes = 8;

std::string header_bytes_of(const std::string& json) {
    std::string bytes(length_field_bytes, '\0');
    for (std::size_t i = 0; i < length_field_bytes; ++i)
        bytes[i] = static_cast<char>((json.size() >> (8 * i)) & 0xFFu);
    return bytes + json;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, SafetensorsHeader header)
    : path_(std::move(path)), header_(std::move(header)), written_bytes_(header_.tensors.size()) {
    const auto json = layout_safetensors(header_);
    if (json.size() > safetensors_header_limit_bytes)
        throw std::invalid_argument(
            fmt::format("the header of {} would take {} bytes; the format allows {}",
                        path_.string(), json.size(), safetensors_header_limit_bytes));
    const auto start = header_bytes_of(json);
    data_begin_bytes_ = start.size();
    const auto data_bytes = header_.tensors.empty() ? 0 : header_.tensors.back().end_bytes;
    std::filesystem::remove(partial_path());
    file_ = std::make_unique<nvme::DirectFile>(partial_path(), nvme::OpenMode::create_exclusive,
                                               nvme::DirectMode::buffered);
    try {
        file_->preallocate(data_begin_bytes_ + data_bytes);
        write_fully(*file_, 0, std::as_bytes(std::span(start)));
    } catch (...) {
        std::error_code ignored;
        std::filesystem::remove(partial_path(), ignored);
        throw;
    }
}

SafetensorsWriter::~SafetensorsWriter() {
    if (!file_)
        return;
    std::error_code ignored;
    std::filesystem::remove(partial_path(), ignored);
}

std::filesystem::path SafetensorsWriter::partial_path() const {
    return partial_path_of(path_);
}

void SafetensorsWriter::write(std::size_t tensor, std::uint64_t offset_bytes,
                              std::span<const std::byte> bytes) {
    const auto& target = header_.tensors.at(tensor);
    if (offset_bytes > target.size_bytes() || bytes.size() > target.size_bytes() - offset_bytes)
        throw std::out_of_range(fmt::format("bytes {} + {} of tensor '{}', which has {}",
                                            offset_bytes, bytes.size(), target.name,
                                            target.size_bytes()));
    write_fully(*file_, data_begin_bytes_ + target.begin_bytes + offset_bytes, bytes);
    written_bytes_[tensor] += bytes.size();
}

void SafetensorsWriter::finish() {
    for (std::size_t i = 0; i < written_bytes_.size(); ++i) {
        if (written_bytes_[i] != header_.tensors[i].size_bytes())
            throw std::logic_error(fmt::format("tensor '{}' of {} got {} of its {} bytes",
                                               header_.tensors[i].name, path_.string(),
                                               written_bytes_[i], header_.tensors[i].size_bytes()));
    }
    file_->sync_data();
    publish_partial(path_);
    file_.reset();
}

}  // namespace spillway::engine
