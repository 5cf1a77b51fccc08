// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <system_error>

#include "nvme/direct_file.h"

namespace spillway::nvme {

enum class IoOperation { read, write, flush };

/// Who waits for a read. Writes and flushes come behind either.
enum class ReadPriority {
    demand,    ///< somebody stands still until it is there
    prefetch,  ///< wanted later
};

enum class MemoryKind {
    host,
    device,  ///< of a GPU: not for the processor to touch, and moved by the gds backend alone
};

/// A piece of a GPU's memory by its address there, of which the processor must not read or write a
/// byte.
struct DeviceSpan {
    std::byte* data = nullptr;
    std::size_t size_bytes = 0;
};

/// What is to be moved, as a passive value: the queue decides when, a backend does it. The file and
/// the memory must stay valid until the request's ticket has been waited for.
struct IoRequest {
    IoOperation operation = IoOperation::flush;
    DirectFile* file = nullptr;
    std::uint64_t offset_bytes = 0;
    std::byte* data = nullptr;
    std::size_t length_bytes = 0;
    ReadPriority read_priority = ReadPriority::demand;  ///< of reads alone
    MemoryKind memory = MemoryKind::host;               ///< of `data`

    static IoRequest make_read(DirectFile& file, std::uint64_t offset_bytes,
                               std::span<std::byte> into,
                               ReadPriority priority = ReadPriority::demand) {
        return {IoOperation::read, &file, offset_bytes, into.data(), into.size(), priority};
    }
    /// A write does not modify `from`; the cast only lets one passive type serve both directions.
    static IoRequest make_write(DirectFile& file, std::uint64_t offset_bytes,
                                std::span<const std::byte> from) {
        return {IoOperation::write, &file, offset_bytes, const_cast<std::byte*>(from.data()),
                from.size()};
    }
    static IoRequest make_device_read(DirectFile& file, std::uint64_t offset_bytes, DeviceSpan into,
                                      ReadPriority priority = ReadPriority::demand) {
        return {IoOperation::read, &file,    offset_bytes,      into.data,
                into.size_bytes,   priority, MemoryKind::device};
    }
    static IoRequest make_device_write(DirectFile& file, std::uint64_t offset_bytes,
                                       DeviceSpan from) {
        return {IoOperation::write, &file,           offset_bytes,
                from.data,          from.size_bytes, ReadPriority::demand,
                MemoryKind::device};
    }
    /// fdatasync of everything whose write has completed before this request is submitted.
    static IoRequest make_flush(DirectFile& file) {
        return {IoOperation::flush, &file, 0, nullptr, 0};
    }
};

/// How a request ended. A default-constructed result is a success of 0 bytes.
struct IoResult {
    std::error_code error;  ///< 0 exactly when every byte moved
    std::size_t moved_bytes = 0;
    std::string context;  ///< on error: operation, path, offset, length, what the system said

    [[nodiscard]] bool ok() const noexcept { return !error; }
    /// Throws std::system_error carrying `error` and `context` unless ok().
    void throw_if_error() const;
};

}  // namespace spillway::nvme
