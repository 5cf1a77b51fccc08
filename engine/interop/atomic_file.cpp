// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/interop/atomic_file.h"

#include <cerrno>
#include <system_error>

#include <fmt/format.h>
#include <unistd.h>

namespace spillway::engine {

std::filesystem::path partial_path_of(const std::filesystem::path& path) {
    auto partial = path;
    partial += ".spillway-partial";
    return partial;
}

void publish_partial(const std::filesystem::path& path) {
    std::filesystem::rename(partial_path_of(path), path);
    nvme::sync_folder(std::filesystem::absolute(path).parent_path());
}

void write_fully(const nvme::DirectFile& file, std::uint64_t offset_bytes,
                 std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const auto put = ::pwrite(file.descriptor(), bytes.data(), bytes.size(),
                                  static_cast<off_t>(offset_bytes));
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            throw std::system_error(put == 0 ? EIO : errno, std::generic_category(),
                                    fmt::format("writing {} bytes at {} of {}", bytes.size(),
                                                offset_bytes, file.path().string()));
        offset_bytes += static_cast<std::uint64_t>(put);
        bytes = bytes.subspan(static_cast<std::size_t>(put));
    }
}

void write_file_atomically(const std::filesystem::path& path, std::string_view text) {
    const auto partial = partial_path_of(path);
    std::filesystem::remove(partial);
    try {
        nvme::DirectFile file(partial, nvme::OpenMode::create_exclusive,
                              nvme::DirectMode::buffered);
        write_fully(file, 0, std::as_bytes(std::span(text)));
        file.sync_data();
        publish_partial(path);
    } catch (...) {
        std::error_code ignored;
        std::filesystem::remove(partial, ignored);
        throw;
    }
}

}  // namespace spillway::engine
