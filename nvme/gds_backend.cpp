// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/gds_backend.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <iterator>
#include <new>
#include <numeric>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "nvme/detail/cufile_calls.h"
#include "nvme/detail/error_name.h"

namespace spillway::nvme {

namespace {

using detail::CuFileCalls;
using detail::CuFileError;

// One registration of half a TiB or more fails on some drivers.
constexpr std::size_t most_piece_bytes = std::size_t{1} << 30;

std::string text_of(const CuFileError& error) {
    return fmt::format("{} (cuFile's code {}, the CUDA driver's {})",
                       detail::meaning_of_cufile(error.code).text, error.code, error.driver_code);
}

void open_driver(const CuFileCalls& calls) {
    const CuFileError error = calls.open_driver();
    if (error.code != 0 && error.code != detail::cufile_already_open)
        throw std::system_error(detail::meaning_of_cufile(error.code).error,
                                std::generic_category(), text_of(error));
}

std::vector<DeviceSpan> cut(const std::vector<DeviceSpan>& memory) {
    std::vector<DeviceSpan> pieces;
    for (const DeviceSpan& whole : memory)
        for (std::size_t at = 0; at < whole.size_bytes; at += most_piece_bytes)
            pieces.push_back({whole.data + at, std::min(most_piece_bytes, whole.size_bytes - at)});
    return pieces;
}

bool bit(unsigned flags, unsigned number) {
    return (flags >> number & 1U) != 0;
}

}  // namespace

GdsBackend::GdsBackend(std::size_t depth, const CuFileCalls& calls, GdsOptions options)
    : calls_(std::make_unique<CuFileCalls>(calls)) {
    open_driver(*calls_);
    BlockingCalls work;
    work.perform = [this](const BackendOperation& operation) { return perform(operation); };
    work.enter_thread = std::move(options.enter_thread);
    pool_ = std::make_unique<ThreadBackend>(depth, std::move(work));
}

GdsBackend::~GdsBackend() {
    pool_.reset();
    for (const DirectFile* file : fixed_files_)
        end_use(*file);
    for (const DeviceSpan& piece : fixed_memory_)
        calls_->deregister_buffer(piece.data);
}

std::vector<std::string> GdsBackend::use_fixed(const FixedResources& fixed) {
    std::vector<std::string> notes;
    for (const DeviceSpan& piece : cut(fixed.device_memory)) {
        const CuFileError error = calls_->register_buffer(piece.data, piece.size_bytes, 0);
        if (error.code != 0) {
            notes.push_back(fmt::format(
                "GPU memory is not registered with cuFile from byte {} on, "
                "which costs a copy per request: {}",
                std::accumulate(
                    fixed_memory_.begin(), fixed_memory_.end(), std::size_t{0},
                    [](std::size_t sum, const DeviceSpan& one) { return sum + one.size_bytes; }),
                text_of(error)));
            break;
        }
        fixed_memory_.push_back(piece);
    }
    std::sort(fixed_memory_.begin(), fixed_memory_.end(),
              [](const DeviceSpan& a, const DeviceSpan& b) { return a.data < b.data; });
    for (DirectFile* file : fixed.files) {
        void* handle = nullptr;
        if (const int code = use_handle(*file, handle); code == 0)
            fixed_files_.push_back(file);
        else
            notes.push_back(fmt::format("{} is not known to cuFile: {}", file->path().string(),
                                        text_of({code, 0})));
    }
    return notes;
}

/// 0, or cuFile's code; end_use() must follow a success.
int GdsBackend::use_handle(const DirectFile& file, void*& handle) {
    const std::lock_guard lock(mutex_);
    OpenHandle& open = handles_[file.descriptor()];
    if (open.users == 0) {
        detail::CuFileDescriptor descriptor = {};
        descriptor.type = 1;
        descriptor.descriptor = file.descriptor();
        if (const CuFileError error = calls_->register_handle(&open.handle, &descriptor);
            error.code != 0) {
            handles_.erase(file.descriptor());
            return error.code;
        }
    }
    ++open.users;
    handle = open.handle;
    return 0;
}

void GdsBackend::end_use(const DirectFile& file) noexcept {
    const std::lock_guard lock(mutex_);
    const auto open = handles_.find(file.descriptor());
    if (open == handles_.end() || --open->second.users > 0)
        return;
    calls_->deregister_handle(open->second.handle);
    handles_.erase(open);
}

BackendCompletion GdsBackend::perform(const BackendOperation& operation) {
    if (operation.operation == IoOperation::flush || operation.memory == MemoryKind::host)
        return perform_blocking(operation);
    void* handle = nullptr;
    try {
        if (const int code = use_handle(*operation.file, handle); code != 0) {
            const auto meaning = detail::meaning_of_cufile(code);
            return {operation.id, -meaning.error, meaning.text};
        }
    } catch (const std::bad_alloc&) {
        return {operation.id, -ENOMEM};
    }
    const BackendCompletion completion = transfer(handle, operation);
    end_use(*operation.file);
    return completion;
}

BackendCompletion GdsBackend::transfer(void* handle, const BackendOperation& operation) const {
    std::byte* base = operation.data;
    // Registered memory is named by its start.
    const auto behind =
        std::upper_bound(fixed_memory_.begin(), fixed_memory_.end(), operation.data,
                         [](const std::byte* at, const DeviceSpan& one) { return at < one.data; });
    if (behind != fixed_memory_.begin()) {
        const DeviceSpan& piece = *std::prev(behind);
        const auto offset = static_cast<std::size_t>(operation.data - piece.data);
        if (offset < piece.size_bytes && operation.length_bytes <= piece.size_bytes - offset)
            base = piece.data;
    }
    const auto offset = static_cast<off_t>(operation.offset_bytes);
    const auto base_offset = static_cast<off_t>(operation.data - base);
    errno = 0;
    const ssize_t moved =
        operation.operation == IoOperation::read
            ? calls_->read(handle, base, operation.length_bytes, offset, base_offset)
            : calls_->write(handle, base, operation.length_bytes, offset, base_offset);
    if (moved >= 0)
        return {operation.id, moved};
    if (moved == -1)
        return {operation.id, -static_cast<std::int64_t>(errno == 0 ? EIO : errno)};
    const auto meaning = detail::meaning_of_cufile(static_cast<int>(-moved));
    return {operation.id, -meaning.error, meaning.text};
}

std::unique_ptr<IoBackend> make_gds_backend(std::size_t depth, GdsOptions options) {
    if (depth == 0)
        throw std::invalid_argument("an I/O backend needs a depth of at least 1; it was given 0");
    try {
        return std::make_unique<GdsBackend>(depth, detail::load_cufile(), std::move(options));
    } catch (const std::system_error& error) {
        throw std::system_error(
            error.code(),
            fmt::format("the gds backend (GPUDirect Storage) does not work here, {}: install what "
                        "is missing, or move GPU memory through host buffers with another backend",
                        detail::refusal_text(error)));
    }
}

GdsReport gds_report() {
    try {
        return gds_report(detail::load_cufile());
    } catch (const std::system_error& error) {
        return {GdsReport::Path::none, "no: " + detail::refusal_text(error)};
    }
}

GdsReport gds_report(const CuFileCalls& calls) {
    detail::CuFileProperties properties = {};
    try {
        open_driver(calls);
        if (const CuFileError error = calls.get_properties(&properties); error.code != 0)
            throw std::system_error(detail::meaning_of_cufile(error.code).error,
                                    std::generic_category(), text_of(error));
    } catch (const std::system_error& error) {
        return {GdsReport::Path::none, "no: " + detail::refusal_text(error)};
    }
    const auto& driver = properties.driver;
    const bool has_nvidia_fs = bit(driver.status_flags, detail::cufile_nvme_bit);
    const bool has_peers = bit(properties.feature_flags, detail::cufile_peer_to_peer_bit);
    const bool may_copy = bit(driver.control_flags, detail::cufile_compatibility_bit);
    const std::string by =
        has_nvidia_fs ? fmt::format("nvidia-fs {}.{}", driver.major_version, driver.minor_version)
                      : "peer-to-peer transfers";
    if (!has_nvidia_fs && !has_peers) {
        if (!may_copy)
            return {GdsReport::Path::none,
                    "no: nvidia-fs does not serve NVMe drives here, and cuFile's configuration "
                    "forbids the way through host memory (allow_compat_mode)"};
        return {GdsReport::Path::compatibility,
                "through host memory: nvidia-fs does not serve NVMe drives here (cuFile's "
                "compatibility mode)"};
    }
    if (may_copy)
        return {GdsReport::Path::undecided,
                fmt::format("by {} where the drive and its file system allow it, else through host "
                            "memory, and cuFile does not tell which; with allow_compat_mode false "
                            "in cufile.json it is the former or an error",
                            by)};
    return {GdsReport::Path::direct, fmt::format("past host memory, by {}", by)};
}

}  // namespace spillway::nvme
