// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/files/durable_files.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nvme/direct_file.h"

namespace spillway::offload::detail {
namespace {

[[noreturn]] void fail(std::string_view verb, const std::filesystem::path& path) {
    throw std::system_error(errno, std::generic_category(),
                            fmt::format("cannot {} {}", verb, path.string()));
}

}  // namespace

Descriptor::Descriptor(const std::filesystem::path& path, int flags)
    : descriptor_(::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0644)) {
    if (descriptor_ < 0)
        fail("open", path);
}

Descriptor::~Descriptor() {
    if (descriptor_ >= 0)
        ::close(descriptor_);
}

Descriptor::Descriptor(Descriptor&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
}

std::string read_text(int descriptor, const std::filesystem::path& path, std::size_t limit_bytes) {
    struct stat status = {};
    if (::fstat(descriptor, &status) != 0)
        fail("ask about", path);
    if (!S_ISREG(status.st_mode))
        throw std::runtime_error(fmt::format("{} is not a regular file", path.string()));
    if (static_cast<std::size_t>(status.st_size) > limit_bytes)
        throw std::runtime_error(fmt::format("{} has {} bytes; at most {} are expected",
                                             path.string(), status.st_size, limit_bytes));
    std::string text(static_cast<std::size_t>(status.st_size), '\0');
    std::size_t filled = 0;
    while (filled < text.size()) {
        const auto got = ::pread(descriptor, text.data() + filled, text.size() - filled,
                                 static_cast<off_t>(filled));
        if (got < 0 && errno != EINTR)
            fail("read", path);
        if (got == 0)
            break;
        filled += static_cast<std::size_t>(std::max<ssize_t>(got, 0));
    }
    text.resize(filled);
    return text;
}

std::string read_text(const std::filesystem::path& path, std::size_t limit_bytes) {
    // Non-blocking, so that a pipe put in the file's place is refused and not waited for.
    const Descriptor file(path, O_RDONLY | O_NONBLOCK);
    return read_text(file.get(), path, limit_bytes);
}

void write_text(int descriptor, const std::filesystem::path& path, std::string_view text) {
    std::size_t written = 0;
    while (written < text.size()) {
        const auto moved = ::pwrite(descriptor, text.data() + written, text.size() - written,
                                    static_cast<off_t>(written));
        if (moved < 0 && errno != EINTR)
            fail("write", path);
        written += static_cast<std::size_t>(std::max<ssize_t>(moved, 0));
    }
    if (::ftruncate(descriptor, static_cast<off_t>(text.size())) != 0)
        fail("set the length of", path);
    if (::fsync(descriptor) != 0)
        fail("flush", path);
}

void write_file(const std::filesystem::path& path, std::string_view text) {
    const Descriptor file(path, O_WRONLY | O_CREAT);
    write_text(file.get(), path, text);
}

void publish_file(const std::filesystem::path& from, const std::filesystem::path& to) {
    if (std::rename(from.c_str(), to.c_str()) != 0)
        fail(fmt::format("rename {} to", from.string()), to);
    nvme::sync_folder(to.parent_path());
}

void make_folders(const std::filesystem::path& folder) {
    if (std::filesystem::is_directory(folder))
        return;
    const auto parent = folder.parent_path();
    make_folders(parent);
    if (::mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST)
        fail("create folder", folder);
    nvme::sync_folder(parent);
}

}  // namespace spillway::offload::detail
