// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "nvme/direct_file.h"

namespace spillway::offload::detail {

/// A file that is put together piece by piece under another name, PATH.spillway-partial, and gets
/// its own when it is whole. A disk that fills is not the end: pieces are taken back until there is
/// room for the closing one. Not thread-safe.
class TraceFile {
  public:
    /// Throws std::system_error naming the path: no folder, no permission, less room than that,
    /// something else than a file in its place.
    TraceFile(std::filesystem::path path, std::string_view head, std::uint64_t least_room_bytes);
    /// Removes what was not published.
    ~TraceFile();
    TraceFile(const TraceFile&) = delete;
    TraceFile& operator=(const TraceFile&) = delete;

    /// Writes `text`, which holds so many events, behind the rest. After a failure nothing more is
    /// written.
    void append(std::string_view text, std::uint64_t events);
    /// Writes the closing piece, flushes and gives the file its name. Throws std::system_error.
    void publish(std::string_view tail);

    [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
    /// Of append(): why the file ends early; "" if it does not.
    [[nodiscard]] const std::string& failure() const noexcept { return failure_; }
    [[nodiscard]] std::uint64_t events() const noexcept { return end_.events; }

  private:
    struct End {
        std::uint64_t bytes = 0;
        std::uint64_t events = 0;
    };
    void write(std::string_view text);
    void take_back() noexcept;

    std::filesystem::path path_;
    std::filesystem::path partial_;
    std::optional<nvme::DirectFile> file_;
    End end_;
    /// Former ends, the first at least `closing_bytes` before `end_` if the file is that long.
    End before_;
    End between_;
    std::string failure_;
    bool published_ = false;
};

}  // namespace spillway::offload::detail
