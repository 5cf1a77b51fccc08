// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/data/data_file.h"

#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

namespace spillway::engine {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, std::string_view problem) {
    throw std::invalid_argument(fmt::format("data file {}: {}", path.string(), problem));
}

std::string reason_of(int error) {
    return std::generic_category().message(error);
}

}  // namespace

DataFile::DataFile(std::filesystem::path path) : path_(std::move(path)) {
    // Asked before opening: opening a pipe would wait for its other end.
    struct stat status {};
    if (::stat(path_.c_str(), &status) != 0)
        refuse(path_, errno == ENOENT ? "does not exist" : "cannot be read: " + reason_of(errno));
    if (S_ISDIR(status.st_mode))
        refuse(path_, "is a folder; name the files in it");
    if (!S_ISREG(status.st_mode))
        refuse(path_, "is no regular file");
    if (status.st_size == 0)
        refuse(path_, "is empty; leave it out");
    size_bytes_ = static_cast<std::uint64_t>(status.st_size);
    descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor_ < 0)
        refuse(path_, "cannot be read: " + reason_of(errno));
}

DataFile::~DataFile() {
    if (descriptor_ >= 0)
        ::close(descriptor_);
}

DataFile::DataFile(DataFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

void DataFile::read(std::uint64_t offset_bytes, std::span<std::byte> out) const {
    while (!out.empty()) {
        const auto got =
            ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset_bytes));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            throw std::system_error(errno, std::generic_category(),
                                    fmt::format("data file {}: reading {} bytes at {}",
                                                path_.string(), out.size(), offset_bytes));
        if (got == 0)
            throw std::runtime_error(fmt::format(
                "data file {}: ends at byte {}, but had {} bytes when the run began; restore it",
                path_.string(), offset_bytes, size_bytes_));
        out = out.subspan(static_cast<std::size_t>(got));
        offset_bytes += static_cast<std::uint64_t>(got);
    }
}

}  // namespace spillway::engine
