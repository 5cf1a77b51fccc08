// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/interop/input_file.h"

#include <fstream>
#include <iterator>
#include <stdexcept>
#include <system_error>

#include <fmt/format.h>

namespace spillway::engine {

namespace fs = std::filesystem;

std::string_view kind_of_file(fs::file_type type) noexcept {
    switch (type) {
        case fs::file_type::not_found:
            return "is not there";
        case fs::file_type::directory:
            return "is a folder";
        case fs::file_type::fifo:
            return "is a pipe";
        case fs::file_type::socket:
            return "is a socket";
        case fs::file_type::block:
        case fs::file_type::character:
            return "is a device";
        default:
            return "is no regular file";
    }
}

std::string read_regular_file(const fs::path& path, std::uintmax_t most_bytes) {
    std::error_code error;
    // Asked before it is opened: opening a pipe waits, and a device may never end.
    const auto status = fs::status(path, error);
    if (status.type() == fs::file_type::none)
        throw std::runtime_error("cannot be read: " + error.message());
    if (!fs::is_regular_file(status))
        throw std::runtime_error(std::string(kind_of_file(status.type())));
    const auto bytes = fs::file_size(path, error);
    if (!error && bytes > most_bytes)
        throw std::runtime_error(
            fmt::format("has {} bytes; at most {} are read", bytes, most_bytes));
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (!file)
        throw std::runtime_error("cannot be read");
    return text;
}

std::string json_reason(const std::exception& error) {
    std::string text = error.what();
    if (const auto end = text.find("] ");
        text.starts_with("[json.exception.") && end != std::string::npos)
        text.erase(0, end + 2);
    constexpr std::string_view lead = "parse error at ";
    if (text.starts_with(lead))
        text.erase(0, lead.size());
    return text;
}

}  // namespace spillway::engine
