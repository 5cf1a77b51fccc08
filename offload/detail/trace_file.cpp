// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/trace_file.h"

#include <cerrno>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

namespace spillway::offload::detail {
namespace {

namespace fs = std::filesystem;

/// Room for the tail: rows and lanes, some hundred bytes each.
constexpr std::uint64_t closing_bytes = std::uint64_t{64} << 10;

[[noreturn]] void refuse(const fs::path& path, int error, const std::string& why) {
    throw std::system_error(error, std::generic_category(),
                            fmt::format("the trace {} cannot be written: {}", path.string(), why));
}

/// What a link points at is replaced, so that a link stays one.
fs::path behind_link(const fs::path& path) {
    std::error_code ignored;
    return fs::is_symlink(path, ignored) ? fs::weakly_canonical(path) : fs::absolute(path);
}

fs::path checked(const fs::path& given, std::uint64_t least_room_bytes) {
    if (given.empty())
        refuse(given, EINVAL, "it has no name");
    const auto path = behind_link(given);
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

}  // namespace

TraceFile::TraceFile(fs::path path, std::string_view head, std::uint64_t least_room_bytes)
    : path_(checked(path, least_room_bytes)), partial_(path_.string() + ".spillway-partial") {
    std::error_code ignored;
    fs::remove(partial_, ignored);
    try {
        file_.emplace(partial_, nvme::OpenMode::create_exclusive, nvme::DirectMode::buffered);
        write(head);
    } catch (const std::system_error& error) {
        file_.reset();
        fs::remove(partial_, ignored);
        refuse(path, error.code().value(), error.what());
    }
    before_ = between_ = end_;
}

TraceFile::~TraceFile() {
    std::error_code ignored;
    if (!published_)
        fs::remove(partial_, ignored);
}

void TraceFile::write(std::string_view text) {
    auto at_bytes = end_.bytes;
    while (!text.empty()) {
        const auto put =
            ::pwrite(file_->descriptor(), text.data(), text.size(), static_cast<off_t>(at_bytes));
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            throw std::system_error(put == 0 ? EIO : errno, std::generic_category(),
                                    fmt::format("writing {} bytes at {} of {}", text.size(),
                                                at_bytes, partial_.string()));
        at_bytes += static_cast<std::uint64_t>(put);
        text.remove_prefix(static_cast<std::size_t>(put));
    }
    end_.bytes = at_bytes;
}

void TraceFile::append(std::string_view text, std::uint64_t events) {
    if (!failure_.empty())
        return;
    try {
        write(text);
        end_.events += events;
    } catch (const std::system_error& error) {
        failure_ = error.what();
        take_back();
        return;
    }
    if (end_.bytes - between_.bytes >= closing_bytes) {
        before_ = between_;
        between_ = end_;
    }
}

/// Back to an end that leaves the room which the tail needs.
void TraceFile::take_back() noexcept {
    end_ = before_;
    if (::ftruncate(file_->descriptor(), static_cast<off_t>(end_.bytes)) != 0)
        failure_ += ", and what stands there cannot be cut";
}

void TraceFile::publish(std::string_view tail) {
    write(tail);
    if (::ftruncate(file_->descriptor(), static_cast<off_t>(end_.bytes)) != 0)
        throw std::system_error(errno, std::generic_category(), "cutting " + partial_.string());
    file_->sync_data();
    fs::rename(partial_, path_);
    published_ = true;
    nvme::sync_folder(path_.parent_path());
}

}  // namespace spillway::offload::detail
