// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/trace/trace_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include "nvme/direct_file.h"
#include "nvme/links.h"
#include "offload/detail/files/file_lock.h"

namespace spillway::offload::detail {
namespace {

namespace fs = std::filesystem;

/// What a full disk gets back at once, for whoever else writes there and the closing piece: two
/// lines of 90 bytes for a row, of which a drive has up to 64, are 11 KiB a drive. This is 20
/// drives' and then some; where it does not do, publish() takes more.
constexpr std::uint64_t closing_bytes = std::uint64_t{256} << 10;

[[noreturn]] void refuse(const fs::path& path, int error, const std::string& why) {
    throw std::system_error(error, std::generic_category(),
                            fmt::format("the trace {} cannot be written: {}", path.string(), why));
}

fs::path checked(const fs::path& given, std::uint64_t least_room_bytes) {
    if (given.empty())
        refuse(given, EINVAL, "it has no name");
    const auto path = nvme::behind_links(given);
    std::error_code error;
    const auto status = fs::status(path, error);
    if (fs::exists(status) && !fs::is_regular_file(status))
        refuse(given, fs::is_directory(status) ? EISDIR : EINVAL,
               fs::is_directory(status) ? "it is a folder; name a file" : "it is not a file");
    const auto folder = path.parent_path();
    if (!fs::is_directory(folder, error))
        refuse(given, ENOENT,
               fmt::format("the folder {} is not there; make it first", folder.string()));
    if (const auto room = nvme::available_bytes(folder); room < least_room_bytes)
        refuse(given, ENOSPC,
               fmt::format("{} has {} bytes of room; a trace takes {} and more", folder.string(),
                           room, least_room_bytes));
    return path;
}

/// Locked; empty if somebody else has it.
Descriptor open_locked(const fs::path& partial) {
    // One that was published or removed while it was being opened is not the one that counts.
    for (int tries = 0; tries < 100; ++tries) {
        Descriptor file(partial, O_RDWR | O_CREAT | O_NONBLOCK);
        if (!try_flock(file.get(), LOCK_EX, partial))
            break;
        if (!is_open_file(file.get(), partial))
            continue;
        if (!fs::is_regular_file(partial))
            throw std::system_error(EINVAL, std::generic_category(),
                                    partial.string() + " is not a file");
        return file;
    }
    return {};
}

bool is_of_room(const std::error_code& error) {
    return error.value() == ENOSPC || error.value() == EDQUOT || error.value() == EFBIG;
}

}  // namespace

TraceFile::TraceFile(const fs::path& path, std::string_view head, std::uint64_t least_room_bytes)
    : path_(checked(path, least_room_bytes)), partial_(path_.string() + ".spillway-partial") {
    try {
        file_ = open_locked(partial_);
        if (file_.get() >= 0) {
            cut();
            write(head);
        }
    } catch (const std::system_error& error) {
        remove_partial();
        refuse(path, error.code().value(), error.what());
    }
    if (file_.get() < 0)
        refuse(path, EBUSY, "another run writes its trace there; name another file");
    head_bytes_ = end_bytes_;
}

TraceFile::~TraceFile() {
    remove_partial();
}

/// Once published it has that name no more, and another run may.
void TraceFile::remove_partial() const noexcept {
    std::error_code ignored;
    if (file_.get() >= 0 && is_open_file(file_.get(), partial_))
        fs::remove(partial_, ignored);
}

void TraceFile::write(std::string_view text) {
    auto at_bytes = end_bytes_;
    while (!text.empty()) {
        const auto put =
            ::pwrite(file_.get(), text.data(), text.size(), static_cast<off_t>(at_bytes));
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            throw std::system_error(put == 0 ? EIO : errno, std::generic_category(),
                                    fmt::format("writing {} bytes at {} of {}", text.size(),
                                                at_bytes, partial_.string()));
        at_bytes += static_cast<std::uint64_t>(put);
        text.remove_prefix(static_cast<std::size_t>(put));
    }
    end_bytes_ = at_bytes;
}

void TraceFile::read(std::uint64_t at_bytes, std::span<char> into) const {
    while (!into.empty()) {
        const auto got =
            ::pread(file_.get(), into.data(), into.size(), static_cast<off_t>(at_bytes));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            throw std::system_error(got == 0 ? EIO : errno, std::generic_category(),
                                    fmt::format("reading {} bytes at {} of {}", into.size(),
                                                at_bytes, partial_.string()));
        at_bytes += static_cast<std::uint64_t>(got);
        into = into.subspan(static_cast<std::size_t>(got));
    }
}

void TraceFile::append(std::string_view text) {
    if (!failure_.empty())
        return;
    try {
        write(text);
        events_ += static_cast<std::uint64_t>(std::ranges::count(text, '\n'));
    } catch (const std::system_error& error) {
        failure_ = error.what();
        give_room();
    }
}

void TraceFile::give_room() noexcept {
    try {
        take_back(closing_bytes);
    } catch (const std::exception&) {
        return;  // publish() tries again, and says so if it cannot
    }
}

/// Whole events, from the last one on.
void TraceFile::take_back(std::uint64_t least_bytes) {
    const auto most_end_bytes = end_bytes_ - std::min(least_bytes, end_bytes_ - head_bytes_);
    std::array<char, 4096> block{};
    for (auto seen = end_bytes_; end_bytes_ > most_end_bytes;) {
        const auto size = std::min<std::uint64_t>(block.size(), seen - head_bytes_);
        if (size == 0)
            throw std::system_error(EIO, std::generic_category(),
                                    partial_.string() + " does not hold what was written to it");
        seen -= size;
        read(seen, std::span(block).first(size));
        for (auto at = size; at > 0 && end_bytes_ > most_end_bytes; --at) {
            if (block[at - 1] != '\n')
                continue;
            end_bytes_ = seen + at - 2;  // before the comma
            --events_;
        }
    }
    cut();
}

void TraceFile::cut() {
    if (::ftruncate(file_.get(), static_cast<off_t>(end_bytes_)) != 0)
        throw std::system_error(errno, std::generic_category(), "cutting " + partial_.string());
}

void TraceFile::write_tail(const Tail& tail) {
    // Others may take the room that is given back: more of it each time.
    for (std::uint64_t back_bytes = 0;;) {
        const auto text = tail(events_);
        try {
            return write(text);
        } catch (const std::system_error& error) {
            if (events_ == 0 || !is_of_room(error.code()))
                throw;
            if (failure_.empty())
                failure_ = error.what();
            back_bytes = std::max<std::uint64_t>(2 * back_bytes, text.size());
            take_back(back_bytes);
        }
    }
}

void TraceFile::publish(const Tail& tail) {
    write_tail(tail);
    cut();
    if (::fdatasync(file_.get()) != 0)
        throw std::system_error(errno, std::generic_category(), "flushing " + partial_.string());
    if (!is_open_file(file_.get(), partial_))
        throw std::system_error(ENOENT, std::generic_category(),
                                partial_.string() + " was taken away");
    fs::rename(partial_, path_);
}

}  // namespace spillway::offload::detail
