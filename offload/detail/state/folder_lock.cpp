// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/state/folder_lock.h"

#include <algorithm>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include "offload/detail/files/file_lock.h"

namespace spillway::offload::detail {
namespace {

/// Empty if the text names none.
std::string pid_in(const std::string& text) {
    constexpr std::string_view key = "pid ";
    for (std::size_t at = text.find(key); at != std::string::npos; at = text.find(key, at + 1)) {
        if (at != 0 && text[at - 1] != '\n')
            continue;
        auto digits = text.substr(at + key.size());
        digits.resize(std::min(digits.find_first_not_of("0123456789"), digits.size()));
        digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
        return digits;
    }
    return {};
}

int open_flags(LockMode mode) {
    return mode == LockMode::exclusive ? O_RDWR | O_CREAT | O_NONBLOCK : O_RDONLY | O_NONBLOCK;
}

}  // namespace

FolderLock::FolderLock(std::filesystem::path file, Descriptor descriptor) noexcept
    : path_(std::move(file)), descriptor_(std::move(descriptor)), owner_(::getpid()) {}

FolderLock::FolderLock(const std::filesystem::path& folder, LockMode mode)
    : FolderLock(folder / file_name, Descriptor(folder / file_name, open_flags(mode))) {
    const int operation = mode == LockMode::exclusive ? LOCK_EX : LOCK_SH;
    if (!try_flock(descriptor_.get(), operation, path_))
        refuse(folder);
    if (!is_open_file(descriptor_.get(), path_))
        throw FolderRefused(fmt::format(
            "{} was removed by another process while it was being opened", folder.string()));
}

FolderLock::~FolderLock() {
    // A forked child shares the open file: unlocking there would unlock the parent, and only
    // closing here would leave the lock with the child.
    if (descriptor_.get() >= 0 && owner_ == ::getpid())
        ::flock(descriptor_.get(), LOCK_UN);
}

std::optional<FolderLock> FolderLock::probe(const std::filesystem::path& folder) {
    const auto path = folder / file_name;
    FolderLock lock(path, Descriptor(path, O_RDONLY | O_NONBLOCK));
    if (!try_flock(lock.descriptor_.get(), LOCK_EX, path) ||
        !is_open_file(lock.descriptor_.get(), path))
        return std::nullopt;
    return lock;
}

std::string FolderLock::read() const {
    return read_text(descriptor_.get(), path_, limit_bytes);
}

void FolderLock::write(std::string_view text) {
    write_text(descriptor_.get(), path_, text);
}

void FolderLock::refuse(const std::filesystem::path& folder) const {
    if (try_flock(descriptor_.get(), LOCK_SH, path_)) {
        ::flock(descriptor_.get(), LOCK_UN);
        throw FolderRefused(fmt::format(
            "{} is being read by another process (inspect, export or generate); wait for its end",
            folder.string()));
    }
    const auto pid = pid_in(read());
    throw FolderRefused(fmt::format("{} is in use by process {}; wait for its end or stop it",
                                    folder.string(), pid.empty() ? "(unknown)" : pid));
}

}  // namespace spillway::offload::detail
