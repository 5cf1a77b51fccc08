// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "offload/detail/files/durable_files.h"

namespace spillway::offload::detail {

/// A file that is put together piece by piece under another name, PATH.spillway-partial, which it
/// holds locked, and gets its own when it is whole. A disk that fills is not the end: events are
/// taken back until there is room for the closing piece. Not thread-safe.
class TraceFile {
  public:
    /// The closing piece of a file that holds so many events.
    using Tail = std::function<std::string(std::uint64_t events)>;

    /// Throws std::system_error naming the path: no folder, no permission, less room than that,
    /// something else than a file in its place, somebody else who writes a trace there.
    TraceFile(const std::filesystem::path& path, std::string_view head,
              std::uint64_t least_room_bytes);
    /// Removes what was not published.
    ~TraceFile();
    TraceFile(const TraceFile&) = delete;
    TraceFile& operator=(const TraceFile&) = delete;

    /// Writes events behind the rest, of which each is ",\n" and a line. After a failure nothing
    /// more is written.
    void append(std::string_view text);
    /// Writes the closing piece, asked for again whenever events had to make room for it, flushes
    /// and gives the file its name, which a power cut may take again. Throws std::system_error:
    /// there is no file then.
    void publish(const Tail& tail);

    [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
    /// Why the file ends early; "" if it does not.
    [[nodiscard]] const std::string& failure() const noexcept { return failure_; }

  private:
    void write(std::string_view text);
    void read(std::uint64_t at_bytes, std::span<char> into) const;
    void write_tail(const Tail& tail);
    void take_back(std::uint64_t least_bytes);
    void give_room() noexcept;
    void cut();
    void remove_partial() const noexcept;

    std::filesystem::path path_;
    std::filesystem::path partial_;
    Descriptor file_;
    std::uint64_t head_bytes_ = 0;
    std::uint64_t end_bytes_ = 0;  ///< of what counts: a piece that failed may stand behind it
    std::uint64_t events_ = 0;
    std::string failure_;
};

}  // namespace spillway::offload::detail
